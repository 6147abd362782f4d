# What the scripts of table.toml share. Before each of them: bash -euo pipefail, and this file.

AS_POSTGRES='setpriv --reuid=postgres --regid=postgres --clear-groups'
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH:/usr/sbin

# Tries a command until it succeeds; who runs the script ends what never does.
until_works() { until "$@" > /dev/null 2>&1; do sleep 0.1; done; }

# Files for servers of files: small, middle, large.
make_www() {
    mkdir -p $DIR/www
    head -c 100 /dev/urandom > $DIR/www/small
    head -c 300000 /dev/urandom > $DIR/www/middle
    head -c ${FULL:+2}24M /dev/urandom > $DIR/www/large
    chmod -R a+rX $DIR/www
}

fetch() { $RUN curl -sSf --noproxy '*' "$@"; }

# Gets them all from URL with these options of curl: one after the other, six at a time, one slowly.
get_all() {
    local url=$1 file i several=""
    shift
    mkdir -p $DIR/got
    for file in small middle large; do fetch "$@" -o $DIR/got/$file $url/$file; cmp $DIR/www/$file $DIR/got/$file; done
    for i in 1 2 3 4 5 6; do several="$several -o $DIR/got/$i $url/middle"; done
    fetch "$@" -Z $several
    for i in 1 2 3 4 5 6; do cmp $DIR/www/middle $DIR/got/$i; done
    fetch "$@" --limit-rate 20M $url/large | cmp - $DIR/www/large
    fetch "$@" -o /dev/null -w 'speed %{speed_download} bytes/s\n' $url/large
}

# Requests without errors, for that many connections at a time.
many_requests() {
    $RUN ab -q -k -n 400 -c $1 $2 > $DIR/ab
    grep -q '^Failed requests: *0$' $DIR/ab
    if grep 'Non-2xx' $DIR/ab; then return 1; fi
    awk '/^Requests per second/ { print "speed", $4, "requests/s" }' $DIR/ab
}

# With what is in its block `http`.
serve_nginx() {
    mkdir -p $DIR/nginx
    cat > $DIR/nginx/conf <<END
daemon off; worker_processes 2; pid $DIR/nginx/pid; error_log stderr; user www-data;
events { worker_connections 512; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path $DIR/nginx/1; proxy_temp_path $DIR/nginx/2;
    fastcgi_temp_path $DIR/nginx/3; uwsgi_temp_path $DIR/nginx/4; scgi_temp_path $DIR/nginx/5; $1 }
END
    exec $RUN nginx -c $DIR/nginx/conf -e stderr
}

# With that module of processes and threads.
serve_apache() {
    mkdir -p $DIR/apache
    cat > $DIR/apache/conf <<END
LoadModule mpm_$1_module /usr/lib/apache2/modules/mod_mpm_$1.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
ServerName localhost
Listen $ADDRESS:$PORT
PidFile $DIR/apache/pid
DefaultRuntimeDir $DIR/apache
ErrorLog /dev/stderr
User www-data
Group www-data
DocumentRoot $DIR/www
END
    exec $RUN apache2 -DFOREGROUND -f $DIR/apache/conf
}

# A server of www at this port.
serve_www() {
    printf '%s\n' "server.bind = \"$ADDRESS\"" "server.port = $1" "server.document-root = \"$DIR/www\"" > $DIR/lighttpd
    exec $RUN lighttpd -D -f $DIR/lighttpd
}

# Sends DIR/sent to an echo, and compares; one that stands still is ended.
make_sent() { head -c ${FULL:+1}20M /dev/urandom > $DIR/sent; }
echo_back() {
    local begin=$(date +%s%N)
    timeout 100 $RUN socat -t 60 - TCP:$ADDRESS:$1,retry=50,interval=0.1 < $DIR/sent | cmp - $DIR/sent
    echo speed $(($(stat -c %s $DIR/sent) * 1000 / (($(date +%s%N) - begin) / 1000000 + 1))) bytes/s
}

make_postgres() {
    chown postgres $DIR
    $AS_POSTGRES initdb -D $DIR/data -A trust -U postgres --no-sync > /dev/null
    echo 'host all all 0.0.0.0/0 trust' >> $DIR/data/pg_hba.conf
    printf '%s\n' 'fsync = off' 'shared_buffers = 32MB' >> $DIR/data/postgresql.conf
}
serve_postgres() { exec $AS_POSTGRES $RUN postgres -D $DIR/data -h $ADDRESS -p $1 -k $DIR; }

# Transactions whose sums must be equal, and a large answer that must be as on TCP.
use_postgres() {
    export PGUSER=postgres PGHOST=$ADDRESS PGPORT=$PORT PGDATABASE=postgres
    until_works pg_isready -q
    $RUN pgbench -i -q -s 1 2> /dev/null
    $RUN pgbench -c 4 -j 1 -T ${FULL:+3}2 | tee $DIR/bench
    test "$($RUN psql -Atc 'select sum(tbalance) = (select sum(delta) from pgbench_history) and sum(tbalance) =
        (select sum(abalance) from pgbench_accounts) from pgbench_tellers')" = t
    $RUN psql -Atc "select string_agg(md5(n::text), '') from generate_series(1, 30000) n" | md5sum > $DIR/sum-$WAY
    cmp $DIR/sum-tcp $DIR/sum-$WAY
    awk '/^tps/ { print "speed", $3, "transactions/s" }' $DIR/bench
}

make_mariadb() {
    chown mysql $DIR
    mariadb-install-db --no-defaults --user=mysql --datadir=$DIR/data --skip-test-db > $DIR/install.log 2>&1
}
MARIADB="--no-defaults --user=mysql --datadir=$DIR/data --socket=$DIR/socket"

# One without the network; `mariadb_is_over` ends it.
local_mariadb() {
    mariadbd $MARIADB --skip-networking --innodb-flush-log-at-trx-commit=0 2> $DIR/log & mariadb_pid=$!
    until_works mariadb-admin --no-defaults -S $DIR/socket ping
}
mariadb_is_over() { kill $mariadb_pid; wait $mariadb_pid; }
