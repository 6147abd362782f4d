//! "Uninstall" of docs/start/install.md, word for word: of what installing and using RaaS wrote, nothing is left.

use std::process::{Command, Stdio};

use crate::rig::run;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/start/install.md");

/// The namespaces in which root is nobody, with empty directories where RaaS might write.
const ENTER: &str = r#"
mount -t proc none /proc
for place in /home /tmp /run /var/cache; do mount -t tmpfs none $place; done
ip link set lo up
exec unshare --user --map-user="$1" --map-group="$1" -- sh -ec "$2" sh "$3"
"#;

/// Installs, uses, uninstalls and compares.
const LIFE: &str = r#"
export HOME=/home/user
mkdir -p $HOME/.cargo/bin $HOME/.cache
[ -z "$XDG_RUNTIME_DIR" ] || mkdir -p "$XDG_RUNTIME_DIR"
PATH=$HOME/.cargo/bin:$PATH
listed() { find /home /tmp /run /var/cache -mindepth 1 | sort; }
before=$(listed)
cp "$1" $HOME/.cargo/bin/raas
cargo() { [ "$*" = "uninstall raas-cli" ] && rm $HOME/.cargo/bin/raas; }
raas daemon --log warn > /dev/null & daemon=$!
while ! raas stat > /dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
raas run --strict -- true
during=$(listed)
UNINSTALL
wait $daemon
after=$(listed)
[ "$before" = "$after" ] || { echo "left: $after"; exit 1; }
echo "there were: $during"
"#;

fn recipe() -> String {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let part = page.split("\n## ").find(|part| part.starts_with("Uninstall")).expect("the page says how");
    let (_, rest) = part.split_once("```sh,no_run\n").expect("by commands");
    rest.split("```").next().unwrap().to_string()
}

#[test]
fn nothing_is_left_after_the_pages_uninstall() {
    let life = LIFE.replace("UNINSTALL", &recipe());
    let socket_of = |uid: &str, runtime: &str| match (uid, runtime) {
        (_, "/run/user") => "/run/user/raas/raasd.sock",
        ("0", _) => "/run/raas/raasd.sock",
        _ => "/tmp/raas-1000/raasd.sock",
    };
    for (uid, runtime) in [("0", ""), ("1000", ""), ("1000", "/run/user")] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "--kill-child", "--"]);
        command.args(["sh", "-ec", ENTER, "sh", uid, &life, env!("CARGO_BIN_EXE_raas")]);
        command.env_remove("RAAS_SOCKET").env_remove("XDG_CACHE_HOME").env("XDG_RUNTIME_DIR", runtime);
        let ended = run(command.stdin(Stdio::null()));
        assert_eq!(ended.code(), 0, "user {uid}, {runtime:?}: {ended:?}");
        for made in [".cargo/bin/raas", "libraas_preload-", "cluster.key", socket_of(uid, runtime)] {
            assert!(ended.stdout.contains(made), "{made} is not where the page has it, user {uid}: {ended:?}");
        }
    }
}
