//! Builds the kernel's software iWARP device (siw) for a guest's kernel: Debian's stock kernels leave it out
//! (`CONFIG_RDMA_SIW` is not set), but their source package has it. Owns which packages that takes and how the module is
//! made of them. Everything is unpacked below the cache; nothing is installed.

use super::apt::Apt;
use anyhow::{Context, Result, bail, ensure};
use harness::child::{self, Stream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Eight files of C on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(600);
/// The source package is one archive of the whole kernel, of which one directory is wanted.
const EXTRACT_LIMIT: Duration = Duration::from_secs(300);
/// Where siw lies in the kernel's tree.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// Constants of siw that are made parameters of the module, so that a test can set them in the guest under
/// `/sys/module/siw/parameters`: file, the line as it is, the lines as they become. Nothing else of siw is changed.
const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "siw_main.c",
        "const bool mpa_crc_required;",
        "bool mpa_crc_required;\nmodule_param(mpa_crc_required, bool, 0644);",
    ),
    ("siw_main.c", "const bool peer_to_peer;", "bool peer_to_peer;\nmodule_param(peer_to_peer, bool, 0644);"),
    (
        "siw_main.c",
        "u_char mpa_version = MPA_REVISION_2;",
        "u_char mpa_version = MPA_REVISION_2;\nmodule_param(mpa_version, byte, 0644);",
    ),
    ("siw.h", "extern const bool mpa_crc_required;", "extern bool mpa_crc_required;"),
    ("siw.h", "extern const bool peer_to_peer;", "extern bool peer_to_peer;"),
];

/// What a built module was made of; another value means that it must be made again.
pub(super) fn recipe(kernel_package: &str) -> String {
    format!("{kernel_package}\n{SETTINGS:?}\n")
}

/// Builds `siw.ko` for `kernel_package` (`linux-image-6.1.0-56-amd64`) of `series` in `dir`, which is empty or not there,
/// and returns its path. The packages' files are removed again.
pub(super) fn build(apt: &Apt, kernel_package: &str, series: &str, dir: &Path) -> Result<PathBuf> {
    for program in ["make", "gcc", "xz"] {
        ensure!(super::programs::on_path(program), "{program} is not on PATH: siw is built from the kernel's source");
    }
    let headers = kernel_package.replacen("linux-image-", "linux-headers-", 1);
    let Some((version, depends)) = apt.candidate(&headers)? else {
        bail!(
            "no apt source has {headers} for the guest's kernel {kernel_package}; remove {} to fetch the newest kernel",
            dir.with_file_name(format!("kernel-{series}")).display()
        );
    };
    let mut packages = vec![format!("{headers}={version}"), format!("linux-source-{series}={version}")];
    let beside = depends.iter().filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"));
    packages.extend(beside.map(|name| format!("{name}={version}")));
    // Libraries of the build's own programs that this machine lacks.
    let kbuild: Vec<&str> =
        packages.iter().map(String::as_str).filter(|name| name.starts_with("linux-kbuild-")).collect();
    let more = apt.missing(&kbuild)?;
    packages.extend(more.into_iter().filter(|name| name.starts_with("lib")));
    let tree = dir.join("tree");
    apt.unpack(&packages, &tree)?;
    let source = extract(&tree, series, dir)?;
    for (file, line, lines) in SETTINGS {
        let path = source.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        std::fs::write(&path, replaced(&text, line, lines).with_context(|| format!("siw's {file} of {version}"))?)?;
    }
    compile(&tree, &headers, &source)?;
    let module = dir.join("siw.ko");
    std::fs::rename(source.join("siw.ko"), &module).context("the build made no siw.ko")?;
    std::fs::remove_dir_all(&tree)?;
    std::fs::remove_dir_all(&source)?;
    Ok(module)
}

/// Takes siw's directory out of the archive of the whole kernel, and removes that archive, which is large.
fn extract(tree: &Path, series: &str, dir: &Path) -> Result<PathBuf> {
    let archive = tree.join(format!("usr/src/linux-source-{series}.tar.xz"));
    let source = dir.join("source");
    std::fs::create_dir_all(&source)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--xz").arg("--file").arg(&archive).arg("--directory").arg(&source);
    tar.args(["--strip-components=5", "--no-same-owner", &format!("linux-source-{series}/{SOURCE}")]);
    let done = child::run_quiet(&mut tar, EXTRACT_LIMIT)?;
    if !done.success() {
        bail!("no {SOURCE} in {}: {}\n{}", archive.display(), done.describe(), done.text(Stream::Err));
    }
    std::fs::remove_file(&archive)?;
    Ok(source)
}

/// `text` with `lines` in the place of `line`, which must be there once.
fn replaced(text: &str, line: &str, lines: &str) -> Result<String> {
    let found = text.lines().filter(|candidate| *candidate == line).count();
    ensure!(found == 1, "the line `{line}` is there {found} times, not once: the settings in siw.rs must follow it");
    Ok(text.lines().map(|candidate| if candidate == line { lines } else { candidate }).fold(
        String::with_capacity(text.len()),
        |mut all, next| {
            all.push_str(next);
            all.push('\n');
            all
        },
    ))
}

fn compile(tree: &Path, headers: &str, source: &Path) -> Result<()> {
    let headers = tree.join("usr/src").join(headers);
    // The package's makefile names the common headers by the path that they have once installed.
    let makefile = headers.join("Makefile");
    let text = std::fs::read_to_string(&makefile).with_context(|| format!("cannot read {}", makefile.display()))?;
    let moved = format!(" {}/usr/src/", tree.display());
    std::fs::write(&makefile, text.replace(" /usr/src/", &moved))?;
    let variables = std::fs::read_to_string(headers.join(".kernelvariables")).unwrap_or_default();
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", source.display()));
    // Debian's compiler for its kernels by its versioned name, if it is there under that name.
    if !compiler(&variables).is_some_and(super::programs::on_path) {
        make.arg("CC=gcc");
    }
    // Types for tracing programs are not needed, and making them takes one more program.
    make.args(["-j2", "CONFIG_RDMA_SIW=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]).env("LC_ALL", "C");
    make.env("LD_LIBRARY_PATH", tree.join(super::apt::LIBRARIES));
    let done = child::run_quiet(&mut make, BUILD_LIMIT)?;
    if !done.success() {
        bail!("building siw: {}\n{}\n{}", done.describe(), done.text(Stream::Out), done.text(Stream::Err));
    }
    Ok(())
}

/// The name of the compiler in the line `CC = ...gcc-12` of the headers' variables.
fn compiler(variables: &str) -> Option<&str> {
    let line = variables.lines().find(|line| line.starts_with("CC = "))?;
    let name = &line[line.rfind("gcc")?..];
    name.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_replaces_its_line() -> Result<()> {
        let text = "/* a */\nconst bool peer_to_peer;\nint x;\n";
        let (_, line, lines) = SETTINGS[1];
        let made = replaced(text, line, lines)?;
        assert_eq!(made, "/* a */\nbool peer_to_peer;\nmodule_param(peer_to_peer, bool, 0644);\nint x;\n");
        assert!(replaced(&made, line, lines).is_err());
        assert!(replaced(&format!("{text}{text}"), line, lines).is_err());
        Ok(())
    }

    #[test]
    fn the_kernels_compiler_is_read() {
        let variables = "override ARCH = x86\nCCACHE = ccache\n\
            CC = $(if $(DEBIAN_KERNEL_USE_CCACHE),$(CCACHE)) $(CROSS_COMPILE)gcc-12\nifneq (a,b)\n";
        assert_eq!(compiler(variables), Some("gcc-12"));
        assert_eq!(compiler("CC = clang\n"), None);
        assert_eq!(compiler(""), None);
    }

    #[test]
    fn another_kernel_needs_another_module() {
        assert_ne!(recipe("linux-image-6.1.0-56-amd64"), recipe("linux-image-6.1.0-57-amd64"));
    }
}
