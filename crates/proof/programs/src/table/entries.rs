//! The programs: what they need, how the server starts, and how its client runs and checks the data. One entry each.
//!
//! Scripts are for bash and stop at the first error. They have `$RUN` (`raas run`, or nothing), `$DIR` (a directory
//! for all runs of this program), `$ADDRESS` and `$PORT` (the server's), `$FILES` (`tests/programs`), `$WAY` and `$FULL`
//! (empty, or 1 for more data). A server is ready when it listens on its port.

/// A program of the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// Programs or files that it needs, each with its Debian package.
    pub(super) programs: &'static [(&'static str, &'static str)],
    /// Its first line is the version.
    pub(super) version: &'static str,
    /// Other entries have other ports; this one and the ten that follow are the program's.
    pub(super) port: u16,
    /// Runs once, before all servers.
    pub(super) prepare: &'static str,
    pub(super) server: &'static str,
    /// Fails if anything was not as it should be; may print `speed NUMBER UNIT`.
    pub(super) client: &'static str,
}

/// Python of the distribution, to which its packages belong.
const PYTHON: (&str, &str) = ("/usr/bin/python3", "python3");
const CURL: (&str, &str) = ("curl", "curl");
/// Files for servers of files: small, middle, large.
const WWW: &str =
    "mkdir -p $DIR/www; cd $DIR/www; head -c 100 /dev/urandom > small; head -c 300000 /dev/urandom > middle
    head -c ${FULL:+2}24M /dev/urandom > large; chmod -R a+rX $DIR/www";
/// Gets them and compares; `$PLACE` is where they are served.
const GET_ALL: &str = "cd $DIR; mkdir -p got-$WAY; for file in small middle large; do
        $RUN curl -sSf --noproxy '*' -o got-$WAY/$file http://$ADDRESS:$PORT/$file; cmp www/$file got-$WAY/$file; done
    $RUN curl -sSf --noproxy '*' -Z $(for i in 1 2 3 4 5 6; do echo -o got-$WAY/p$i http://$ADDRESS:$PORT/middle; done)
    for i in 1 2 3 4 5 6; do cmp www/middle got-$WAY/p$i; done
    $RUN curl -sSf --noproxy '*' --limit-rate 20M -o got-$WAY/slow http://$ADDRESS:$PORT/large
    cmp www/large got-$WAY/slow
    $RUN curl -sSf --noproxy '*' -o /dev/null -w 'speed %{speed_download} bytes/s\n' http://$ADDRESS:$PORT/large";

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "memcached",
        programs: &[("memcached", "memcached"), ("memcslap", "libmemcached-tools"), PYTHON],
        version: "memcached -V",
        port: 21_000,
        prepare: ":",
        server: "exec $RUN memcached -l $ADDRESS -p $PORT -u nobody -U 0 -t 2 -m 200",
        client: "$RUN memccapable -h $ADDRESS -p $PORT -a > $DIR/capable-$WAY 2>&1 || { cat $DIR/capable-$WAY; exit 1; }
            $RUN /usr/bin/python3 $FILES/values.py memcached $ADDRESS $PORT ${FULL:+10}10000
            count=${FULL:+10}5000
            $RUN memcslap --servers=$ADDRESS:$PORT --concurrency=2 --execute-number=$count --test=get --tcp-nodelay |
                tee $DIR/slap | grep seconds
            awk -v n=$count '/seconds/ { for (i = 1; i <= NF; i++) if ($i ~ /^[0-9.]+$/) t = $i }
                END { if (t > 0) print \"speed\", 2 * n / t, \"gets/s\"; else exit 1 }' $DIR/slap",
    },
    Entry {
        name: "redis",
        programs: &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), PYTHON],
        version: "redis-server --version",
        port: 21_020,
        prepare: ":",
        server: "exec $RUN redis-server --bind $ADDRESS --port $PORT --save '' --appendonly no --protected-mode no \
            --dir $DIR",
        client: "$RUN /usr/bin/python3 $FILES/values.py redis $ADDRESS $PORT 100000
            $RUN redis-benchmark -h $ADDRESS -p $PORT -n ${FULL:+10}10000 -c 20 -P 1 -t set,get --csv > $DIR/csv
            cat $DIR/csv; awk -F'\"' '$2 == \"GET\" { print \"speed\", $4, \"gets/s\"; n++ } END { exit n != 1 }' $DIR/csv
            $RUN redis-cli -h $ADDRESS -p $PORT ping | grep -x PONG",
    },
    Entry {
        name: "http.server",
        programs: &[PYTHON, CURL],
        version: "/usr/bin/python3 -V",
        port: 21_040,
        prepare: WWW,
        server: "exec $RUN /usr/bin/python3 -m http.server $PORT --bind $ADDRESS --directory $DIR/www",
        client: GET_ALL,
    },
    Entry {
        name: "iperf3",
        programs: &[("iperf3", "iperf3"), PYTHON],
        version: "iperf3 -v",
        port: 21_060,
        // It has no look at its data (with -F it loses pieces on TCP too), but both ends count bytes.
        prepare: ":",
        server: "exec $RUN iperf3 -s -B $ADDRESS -p $PORT",
        client: "$RUN iperf3 -c $ADDRESS -p $PORT -t 1 -P 4 -R -J > $DIR/several.json
            $RUN iperf3 -c $ADDRESS -p $PORT -t ${FULL:+1}1 -J > $DIR/stream.json
            /usr/bin/python3 -c 'import json, sys
for name in sys.argv[1:]:
    end = json.load(open(name))[\"end\"]
    sent, received = end[\"sum_sent\"][\"bytes\"], end[\"sum_received\"][\"bytes\"]
    assert 0.5 * sent < received <= sent, (name, sent, received)
print(\"speed\", end[\"sum_received\"][\"bits_per_second\"] / 1e9, \"Gbit/s\")' $DIR/several.json $DIR/stream.json",
    },
    Entry {
        name: "nginx",
        programs: &[("nginx", "nginx-light"), ("wrk", "wrk"), CURL],
        version: "nginx -v 2>&1",
        port: 21_080,
        prepare: WWW,
        server: "mkdir -p $DIR/$WAY; cat > $DIR/$WAY/conf <<END
daemon off; worker_processes 2; pid $DIR/$WAY/pid; error_log stderr; user www-data;
events { worker_connections 512; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path $DIR/$WAY/1; proxy_temp_path $DIR/$WAY/2;
    fastcgi_temp_path $DIR/$WAY/3; uwsgi_temp_path $DIR/$WAY/4; scgi_temp_path $DIR/$WAY/5;
    server { listen $ADDRESS:$PORT; root $DIR/www; } }
END
            exec $RUN nginx -c $DIR/$WAY/conf -e stderr",
        client: "cd $DIR; mkdir -p got-$WAY; for file in small middle large; do
                $RUN curl -sSf --noproxy '*' -o got-$WAY/$file http://$ADDRESS:$PORT/$file
                cmp www/$file got-$WAY/$file; done
            $RUN curl -sSf --noproxy '*' --limit-rate 20M http://$ADDRESS:$PORT/large | cmp - www/large
            $RUN curl -sSf --noproxy '*' -r 1000-1999 http://$ADDRESS:$PORT/middle > got-$WAY/part
            tail -c +1001 www/middle > got-$WAY/rest; cmp -n 1000 got-$WAY/rest got-$WAY/part
            test $(stat -c %s got-$WAY/part) = 1000
            $RUN wrk -t 1 -c 8 -d ${FULL:+1}2s http://$ADDRESS:$PORT/small | tee $DIR/wrk
            if grep -q 'Socket errors\\|Non-2xx' $DIR/wrk; then exit 1; fi
            awk '/Requests.sec/ { print \"speed\", $2, \"requests/s\" }' $DIR/wrk",
    },
    Entry {
        name: "socat",
        programs: &[("socat", "socat")],
        version: "socat -V | sed -n 2p",
        port: 21_100,
        prepare: "head -c ${FULL:+10}20M /dev/urandom > $DIR/sent",
        // On the port behind, the program that is started has the connection itself.
        server: "$RUN socat TCP-LISTEN:$((PORT + 1)),bind=$ADDRESS,reuseaddr,fork EXEC:cat,nofork &
            exec $RUN socat TCP-LISTEN:$PORT,bind=$ADDRESS,reuseaddr,fork EXEC:cat",
        client: "$RUN socat -t 60 - TCP:$ADDRESS:$((PORT + 1)),retry=50,interval=0.1 < $DIR/sent > $DIR/back-$WAY
            cmp $DIR/sent $DIR/back-$WAY; begin=$(date +%s%N)
            $RUN socat -t 60 - TCP:$ADDRESS:$PORT < $DIR/sent > $DIR/back-$WAY
            end=$(date +%s%N); cmp $DIR/sent $DIR/back-$WAY
            echo speed $(($(stat -c %s $DIR/sent) * 1000 / ((end - begin) / 1000000 + 1))) bytes/s",
    },
    Entry {
        name: "asyncio",
        programs: &[PYTHON],
        version: "/usr/bin/python3 -V",
        port: 21_120,
        prepare: ":",
        server: "exec $RUN /usr/bin/python3 $FILES/echo_asyncio.py server $ADDRESS $PORT",
        client: "$RUN /usr/bin/python3 $FILES/echo_asyncio.py client $ADDRESS $PORT 20 ${FULL:+10}50",
    },
    Entry {
        name: "postgresql",
        programs: &[
            ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
            ("/usr/lib/postgresql/15/bin/pgbench", "postgresql-15"),
            ("setpriv", "util-linux"),
        ],
        version: "/usr/lib/postgresql/15/bin/postgres -V",
        port: 21_140,
        prepare: "chown postgres $DIR; export PATH=/usr/lib/postgresql/15/bin:$PATH
            as='setpriv --reuid=postgres --regid=postgres --clear-groups'
            $as initdb -D $DIR/data -A trust -U postgres --no-sync > /dev/null
            printf '%s\\n' 'host all all 0.0.0.0/0 trust' >> $DIR/data/pg_hba.conf
            printf '%s\\n' 'fsync = off' 'shared_buffers = 32MB' >> $DIR/data/postgresql.conf",
        server: "export PATH=/usr/lib/postgresql/15/bin:$PATH
            exec setpriv --reuid=postgres --regid=postgres --clear-groups \
            $RUN postgres -D $DIR/data -h $ADDRESS -p $PORT -k $DIR",
        client: "export PATH=/usr/lib/postgresql/15/bin:$PATH PGUSER=postgres PGHOST=$ADDRESS PGPORT=$PORT PGDATABASE=postgres
            until pg_isready -q; do sleep 0.1; done
            $RUN pgbench -i -q -s 1 2> /dev/null
            $RUN pgbench -c 4 -j 1 -T ${FULL:+3}2 | tee $DIR/bench
            test \"$($RUN psql -Atc 'select sum(tbalance) = (select sum(delta) from pgbench_history) and sum(tbalance) =
                (select sum(abalance) from pgbench_accounts) from pgbench_tellers')\" = t
            $RUN psql -Atc \"select string_agg(md5(n::text), '') from generate_series(1, 30000) n\" | md5sum > $DIR/sum-$WAY
            cmp $DIR/sum-tcp $DIR/sum-$WAY
            awk '/^tps/ { print \"speed\", $3, \"transactions/s\" }' $DIR/bench",
    },
    Entry {
        name: "grpc",
        programs: &[PYTHON, ("/usr/lib/python3/dist-packages/grpc", "python3-grpcio")],
        version: "/usr/bin/python3 -c 'import grpc; print(grpc.__version__)'",
        port: 21_160,
        prepare: ":",
        server: "exec $RUN /usr/bin/python3 $FILES/echo_grpc.py server $ADDRESS $PORT",
        client: "$RUN /usr/bin/python3 $FILES/echo_grpc.py client $ADDRESS $PORT ${FULL:+10}500",
    },
    Entry {
        name: "zeromq",
        programs: &[PYTHON, ("/usr/lib/python3/dist-packages/zmq", "python3-zmq")],
        version: "/usr/bin/python3 -c 'import zmq; print(zmq.zmq_version())'",
        port: 21_180,
        prepare: ":",
        server: "exec $RUN /usr/bin/python3 $FILES/pushpull_zeromq.py server $ADDRESS $PORT 4",
        client: "pairs=100; rounds=30; if [ -n \"$FULL\" ]; then pairs=1000; rounds=1000; fi
            $RUN /usr/bin/python3 $FILES/pushpull_zeromq.py client $ADDRESS $PORT 1 $pairs $rounds
            $RUN /usr/bin/python3 $FILES/pushpull_zeromq.py client $ADDRESS $PORT 4 $pairs $rounds",
    },
    Entry {
        name: "haproxy",
        programs: &[("haproxy", "haproxy"), PYTHON, CURL],
        version: "haproxy -v",
        port: 21_200,
        prepare: WWW,
        server: "mkdir -p $DIR/$WAY; cat > $DIR/$WAY/conf <<END
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend front
    bind $ADDRESS:$PORT
    default_backend back
backend back
    server one $ADDRESS:$((PORT + 1))
END
            $RUN /usr/bin/python3 -m http.server $((PORT + 1)) --bind $ADDRESS --directory $DIR/www &
            until curl -sf --noproxy '*' -o /dev/null http://$ADDRESS:$((PORT + 1))/small; do sleep 0.1; done
            exec $RUN haproxy -db -f $DIR/$WAY/conf",
        client: GET_ALL,
    },
    Entry {
        name: "node",
        programs: &[("node", "nodejs")],
        version: "node --version",
        port: 21_220,
        prepare: ":",
        server: "exec $RUN node $FILES/http_node.js server $ADDRESS $PORT",
        client: "$RUN node $FILES/http_node.js client $ADDRESS $PORT ${FULL:+10}1000",
    },
    Entry {
        name: "mariadb-backup",
        programs: &[("mariadbd", "mariadb-server"), ("mariadb-backup", "mariadb-backup"), ("socat", "socat")],
        version: "mariadb-backup --version 2>&1",
        port: 21_240,
        prepare: "chown mysql $DIR
            mariadb-install-db --no-defaults --user=mysql --datadir=$DIR/data --skip-test-db > $DIR/install.log 2>&1
            mariadbd --no-defaults --user=mysql --datadir=$DIR/data --socket=$DIR/socket --skip-networking \
                --innodb-flush-log-at-trx-commit=0 2> $DIR/log & server=$!
            until mariadb-admin --no-defaults -S $DIR/socket ping > /dev/null 2>&1; do sleep 0.1; done
            mariadb --no-defaults -S $DIR/socket -e 'create database d; use d; create table d.t (n int primary key, b blob);
                insert into d.t select seq, random_bytes(1024) from seq_1_to_'${FULL:+13}65536
            kill $server; wait $server",
        server: "exec $RUN socat -u TCP-LISTEN:$PORT,bind=$ADDRESS,reuseaddr,fork CREATE:$DIR/received-$WAY",
        client: "mariadbd --no-defaults --user=mysql --datadir=$DIR/data --socket=$DIR/socket --skip-networking \
                2> $DIR/log & server=$!; trap 'kill $server; wait $server' EXIT
            until mariadb-admin --no-defaults -S $DIR/socket ping > /dev/null 2>&1; do sleep 0.1; done
            mkdir -p $DIR/tmp; begin=$(date +%s%N)
            mariadb-backup --no-defaults --backup --stream=xbstream --target-dir=$DIR/tmp --datadir=$DIR/data \
                -S $DIR/socket 2> $DIR/backup.log > $DIR/stream-$WAY
            $RUN socat -u OPEN:$DIR/stream-$WAY TCP:$ADDRESS:$PORT
            end=$(date +%s%N); size=$(stat -c %s $DIR/stream-$WAY); test $size -gt 60000000
            for n in $(seq 100); do test $(stat -c %s $DIR/received-$WAY) -ge $size && break; sleep 0.1; done
            cmp $DIR/stream-$WAY $DIR/received-$WAY; rm $DIR/stream-$WAY $DIR/received-$WAY
            echo speed $((size * 1000 / ((end - begin) / 1000000 + 1))) bytes/s",
    },
];
