//! The libibverbs that programs get, and a directory in which it has the names that they ask for.
//!
//! Owns where both are. It must never write where another user could change what it wrote.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use terminal::Failure;

/// The file, beside this program or where a package has it.
const NAME: &str = "raas-libibverbs";
const INSTALLED: &str = "/usr/lib/raas";
/// Environment variable that names another file.
const VARIABLE: &str = "RAAS_LIBIBVERBS";
/// What programs ask the dynamic linker for.
const ASKED: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// Where the library is.
pub(super) struct Library {
    pub(super) file: PathBuf,
    /// The directory with its names.
    pub(super) names: PathBuf,
}

pub(super) fn find(own: &Path) -> Result<Library, Failure> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = own.canonicalize().ok().and_then(|own| own.parent().map(Path::to_owned));
    let places = beside.into_iter().flat_map(|dir| [dir.join(NAME), dir.join("../lib/raas").join(NAME)]);
    let all = named.clone().into_iter().chain(places).chain([Path::new(INSTALLED).join(NAME)]);
    let candidates = if named.is_some() { 1 } else { usize::MAX };
    let file =
        all.take(candidates).find_map(|path| path.canonicalize().ok()).ok_or_else(|| missing(named.as_deref()))?;
    let text = file.to_string_lossy();
    if text.contains([':', ' ']) {
        return Err(Failure::Usage(format!("{text}: a path with a colon or a space cannot be preloaded")));
    }
    let names = names(&file).map_err(|e| Failure::failed("no directory for the names of libibverbs", e))?;
    Ok(Library { file, names })
}

fn missing(named: Option<&Path>) -> Failure {
    match named {
        Some(named) => Failure::Usage(format!("${VARIABLE}: there is no {}", named.display())),
        None => Failure::Usage(format!(
            "{NAME} is not beside this program: `cargo build --release -p ibverbs` builds it there; or set ${VARIABLE} to its \
             path"
        )),
    }
}

/// A directory of this user's in which the names lead to the file.
fn names(file: &Path) -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_absolute());
    let base = base.map_or_else(|| PathBuf::from(format!("/tmp/raas-{user}")), |base| base.join("raas"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&base)?;
    // A directory for each file: programs of other builds may be running.
    let dir = base.join(format!("verbs-{:016x}", hash(file)));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    for dir in [&base, &dir] {
        let found = std::fs::symlink_metadata(dir)?;
        if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
            return Err(io::Error::other(format!(
                "{} is not a directory that this user alone can change",
                dir.display()
            )));
        }
    }
    for name in ASKED {
        let link = dir.join(name);
        match symlink(file, &link) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ if std::fs::read_link(&link)? != file => {
                return Err(io::Error::other(format!("{} leads elsewhere: remove it", link.display())));
            }
            _ => {}
        }
    }
    Ok(dir)
}

fn hash(path: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}
