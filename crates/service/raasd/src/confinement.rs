//! What the process of a daemon may still do: it becomes an ordinary user, loses its rights, and is held by the kernel to
//! the system calls and the files that a daemon needs (docs/operate/configuration.md, "Sandbox").
//!
//! Owns the order: first the user, then Landlock, then the filter of system calls, each read back. All of it happens in
//! a process with one thread, so that each thread that comes later has it. It must never be silent about what the kernel
//! did not give, and never touch a process that is more than a daemon: only `raas daemon` calls it, and embedded daemons
//! do not.

mod calls;
mod files;
pub(crate) mod probe;
mod user;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use receivers::Spawner;

use crate::sandbox::{Confinement, Sandbox};
use crate::socket_place::make_directory_of;
use crate::{Config, DaemonError};

/// A part that cannot be had: told, or a reason not to start.
fn missing(done: &mut Confinement, sandbox: Sandbox, words: String) -> Result<(), DaemonError> {
    if sandbox == Sandbox::Required {
        let what = format!("{words}; sandbox = \"auto\" starts the daemon without it");
        return Err(DaemonError::Sandbox { what });
    }
    done.warnings.push(words);
    Ok(())
}

/// Confines this process as `config` says, for ever. It must have one thread. With `starts` the control socket's directory
/// is made before, which may need rights that the process has no longer afterwards; without, as for `--check`, nothing
/// that others see is changed.
pub fn confine(config: &Config, starts: bool) -> Result<Confinement, DaemonError> {
    one_thread()?;
    let mut done = Confinement::default();
    let user = config.user.as_deref().map(|name| user::find(name, config)).transpose()?;
    if user.is_none() && config.group.is_some() {
        let what = "`group` says nothing without `user`".to_owned();
        return Err(DaemonError::User { user: String::new(), what });
    }
    if starts && (user.is_some() || config.sandbox != Sandbox::Off) {
        if user.is_some() {
            make_ways_to(socket_directory(config))?;
        }
        make_directory_of(&config.socket, config.socket_mode, config.socket_group.is_some())?;
    }
    if let Some(user) = &user {
        if starts {
            user.give_directory(socket_directory(config), &config.socket)?;
        }
        done.words.push(user.become_it()?);
    } else if rustix::process::geteuid().is_root() {
        done.words.push("this daemon runs as root; `user` in its configuration makes it an ordinary user".into());
    }
    if config.sandbox == Sandbox::Off {
        done.spawner = spawner(starts)?;
        done.warnings.push("sandbox = \"off\": neither system calls nor files are restricted".into());
        return Ok(done);
    }
    match files::restrict(config) {
        Ok(files::Restricted { abi, words }) => {
            done.landlock_abi = abi;
            done.words.push(words);
        }
        Err(why) => missing(&mut done, config.sandbox, format!("files are not restricted: {why}"))?,
    }
    done.spawner = spawner(starts)?;
    match calls::filter(config.sandbox_violation) {
        Ok(words) => {
            done.calls_filtered = true;
            done.words.push(words);
        }
        Err(why) => missing(&mut done, config.sandbox, format!("system calls are not filtered: {why}"))?,
    }
    Ok(done)
}

/// Its processes have the user and the files of the daemon, and are made before no process may be made any more.
fn spawner(starts: bool) -> Result<Option<Arc<Spawner>>, DaemonError> {
    starts
        .then(|| Spawner::start().map(Arc::new))
        .transpose()
        .map_err(DaemonError::io("cannot start the process that makes receivers"))
}

/// What is set now holds for threads that are made later, not for those that are there.
fn one_thread() -> Result<(), DaemonError> {
    let tasks = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    match tasks {
        1 => Ok(()),
        n => Err(DaemonError::Sandbox { what: format!("the process has {n} threads already; this is a bug in raas") }),
    }
}

/// Makes what leads to `directory`, so that another user can go there.
fn make_ways_to(directory: &Path) -> Result<(), DaemonError> {
    let Some(above) = directory.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) else { return Ok(()) };
    make_ways_to(above)?;
    let open = std::fs::Permissions::from_mode(0o755);
    let made = std::fs::create_dir(above).and_then(|()| std::fs::set_permissions(above, open));
    made.map_err(DaemonError::io("the directories above the control socket's cannot be made"))
}

fn socket_directory(config: &Config) -> &Path {
    parent(&config.socket)
}

/// The directory of a file.
fn parent(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
