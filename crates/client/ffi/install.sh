#!/bin/sh
# install.sh LIBRARIES PREFIX: puts libraas, its headers, raas.pc and raas(3) under PREFIX (an absolute path).
# LIBRARIES is the folder in which `cargo build --release -p raas-ffi` left its libraries: target/release.
# With DESTDIR in the environment the files go there, and raas.pc names PREFIX.
set -eu
[ $# -eq 2 ] || { echo "usage: install.sh LIBRARIES PREFIX" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
from=$1
prefix=$2
to=${DESTDIR:-}$prefix
case $prefix in /*) ;; *) echo "install.sh: PREFIX must be an absolute path, and is $prefix" >&2; exit 2 ;; esac
for file in libraas_ffi.so libraas_ffi.a; do
    [ -f "$from/$file" ] || { echo "install.sh: $from has no $file: cargo build --release -p raas-ffi" >&2; exit 1; }
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../../Cargo.toml" | head -n 1)
mkdir -p "$to/lib/pkgconfig" "$to/include" "$to/share/man/man3"
install -m 755 "$from/libraas_ffi.so" "$to/lib/libraas.so.$version"
ln -sf "libraas.so.$version" "$to/lib/libraas.so.0"
ln -sf libraas.so.0 "$to/lib/libraas.so"
install -m 644 "$from/libraas_ffi.a" "$to/lib/libraas.a"
install -m 644 "$here/include/raas.h" "$here/include/raas.hpp" "$to/include/"
install -m 644 "$here/man/raas.3" "$to/share/man/man3/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/raas.pc.in" > "$to/lib/pkgconfig/raas.pc"
echo "installed libraas $version under $to"
