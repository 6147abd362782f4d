//! The modules of one crate and who of them names whom, read from the source with `syn`. Owns the reading of files, the
//! scopes of names and the resolving of paths through imports and re-exports; what is a circle is judged in `circles`.
//!
//! Code under `cfg(test)` is left out: a test may use whatever it judges. A name counts for the module that defines it,
//! not for the one that passes it on. What needs the types (methods, fields) is not seen, and neither is what a macro
//! makes up.

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module of a crate; an index into [`Modules`].
pub(super) type Id = usize;
/// The crate's root.
pub(super) const ROOT: Id = 0;

/// Names that were looked up on the way: imports may go round, through `*`.
type Seen = BTreeSet<(Id, String)>;

/// All modules of one crate.
#[derive(Debug, Default)]
pub(super) struct Modules {
    all: Vec<Module>,
}

/// One module: a file or a `mod name { ... }`.
#[derive(Debug)]
pub(super) struct Module {
    name: String,
    parent: Option<Id>,
    file: PathBuf,
    /// What a path in this module may begin with, and what a path through it may go on with.
    scope: BTreeMap<String, Meaning>,
    /// Modules whose names are all imported.
    globs: Vec<Vec<String>>,
    mentions: Vec<Mention>,
}

/// What a name stands for in a module.
#[derive(Debug, Clone)]
enum Meaning {
    Child(Id),
    /// Defined here.
    Item,
    /// Imported by this path.
    Import(Vec<String>),
}

/// A path in the source.
#[derive(Debug)]
struct Mention {
    path: Vec<String>,
    line: usize,
}

/// One module names something that another one defines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) from: Id,
    pub(super) to: Id,
    /// Where and by which words: `src/nic.rs:12: wire::Packet`.
    pub(super) place: String,
}

impl Modules {
    /// Reads the crate whose root is the file `source`; messages name files relative to `base`.
    pub(super) fn read(source: &Path, base: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let dir = source.parent().context("a source file without a directory")?;
        modules.read_file("crate", None, source, dir, base)?;
        Ok(modules)
    }

    pub(super) fn parent(&self, id: Id) -> Option<Id> {
        self.all[id].parent
    }

    /// The module's path from the crate's root: `qp::state`; the root is `crate`.
    pub(super) fn path(&self, id: Id) -> String {
        match self.all[id].parent {
            None => self.all[id].name.clone(),
            Some(ROOT) => self.all[id].name.clone(),
            Some(parent) => format!("{}::{}", self.path(parent), self.all[id].name),
        }
    }

    /// Who names whom, each pair once, by its first line.
    pub(super) fn uses(&self) -> Vec<Use> {
        let mut first: BTreeMap<(Id, Id), Use> = BTreeMap::new();
        for (from, module) in self.all.iter().enumerate() {
            for mention in &module.mentions {
                let Some(to) = self.definer(from, &mention.path, &mut BTreeSet::new()).filter(|to| *to != from) else {
                    continue;
                };
                let place = format!("{}:{}: {}", module.file.display(), mention.line, mention.path.join("::"));
                first.entry((from, to)).or_insert(Use { from, to, place });
            }
        }
        first.into_values().collect()
    }

    /// The module of this crate that defines what `path` names in `module`.
    fn definer(&self, module: Id, path: &[String], seen: &mut Seen) -> Option<Id> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.through(ROOT, rest, seen),
            "self" => self.through(module, rest, seen),
            "super" => self.through(self.all[module].parent?, rest, seen),
            _ => self.named(module, first, rest, seen),
        }
    }

    /// Follows `rest` from `module`, which the path has reached. What nobody defines by that name was made by a macro,
    /// or is the module itself.
    fn through(&self, module: Id, rest: &[String], seen: &mut Seen) -> Option<Id> {
        let Some((first, after)) = rest.split_first() else {
            return Some(module);
        };
        if first == "super" {
            return self.through(self.all[module].parent?, after, seen);
        }
        self.named(module, first, after, seen).or(Some(module))
    }

    /// What `name` stands for in `module`, and on along `rest`; `None` for names of other crates.
    fn named(&self, module: Id, name: &str, rest: &[String], seen: &mut Seen) -> Option<Id> {
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        match self.all[module].scope.get(name) {
            Some(Meaning::Child(child)) => return self.through(*child, rest, seen),
            Some(Meaning::Item) => return Some(module),
            Some(Meaning::Import(path)) => {
                // `use tracing;` stands for itself.
                let itself = path.len() == 1 && path[0] == name;
                let path: Vec<String> = path.iter().chain(rest).cloned().collect();
                return if itself { None } else { self.definer(module, &path, seen) };
            }
            None => {}
        }
        self.all[module].globs.iter().find_map(|glob| {
            let source = self.definer(module, glob, seen).filter(|source| *source != module)?;
            self.named(source, name, rest, seen)
        })
    }

    fn read_file(&mut self, name: &str, parent: Option<Id>, file: &Path, dir: &Path, base: &Path) -> Result<Id> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        let shown = file.strip_prefix(base).unwrap_or(file);
        self.add(name, parent, shown, &parsed.items, dir, base)
    }

    /// Adds a module with these items, whose children's files are in `dir`.
    fn add(
        &mut self,
        name: &str,
        parent: Option<Id>,
        file: &Path,
        items: &[syn::Item],
        dir: &Path,
        base: &Path,
    ) -> Result<Id> {
        let id = self.all.len();
        self.all.push(Module {
            name: name.to_owned(),
            parent,
            file: file.to_owned(),
            scope: BTreeMap::new(),
            globs: vec![],
            mentions: vec![],
        });
        for item in items {
            match item {
                syn::Item::Mod(child) if !is_test(&child.attrs) => self.add_child(id, child, dir, base)?,
                _ => self.add_item(id, item),
            }
        }
        let mut found = Mentions::default();
        for item in items.iter().filter(|item| !matches!(item, syn::Item::Mod(_))) {
            found.visit_item(item);
        }
        self.all[id].mentions = found.all;
        Ok(id)
    }

    fn add_child(&mut self, parent: Id, child: &syn::ItemMod, dir: &Path, base: &Path) -> Result<()> {
        let name = child.ident.to_string();
        let inside = dir.join(&name);
        let id = match &child.content {
            Some((_, items)) => {
                let file = self.all[parent].file.clone();
                self.add(&name, Some(parent), &file, items, &inside, base)?
            }
            None => {
                let here = base.join(&self.all[parent].file);
                // A file that is named by attribute has its children beside it, as `mod.rs` has.
                let named = path_attribute(&child.attrs).and_then(|path| Some(here.parent()?.join(path)));
                let candidates = match named {
                    Some(file) => vec![(file.parent().unwrap_or(dir).to_owned(), file)],
                    None => {
                        vec![(inside.clone(), dir.join(format!("{name}.rs"))), (inside.clone(), inside.join("mod.rs"))]
                    }
                };
                let Some((inside, file)) = candidates.iter().find(|(_, file)| file.is_file()) else {
                    bail!("no file of module {name} in {}", dir.display());
                };
                self.read_file(&name, Some(parent), file, inside, base)?
            }
        };
        self.all[parent].scope.insert(name, Meaning::Child(id));
        Ok(())
    }

    fn add_item(&mut self, id: Id, item: &syn::Item) {
        let module = &mut self.all[id];
        if let syn::Item::Use(item) = item {
            if !is_test(&item.attrs) {
                for leaf in leaves(&item.tree) {
                    match leaf.name {
                        Some(name) => {
                            module.scope.entry(name).or_insert(Meaning::Import(leaf.path));
                        }
                        None => module.globs.push(leaf.path),
                    }
                }
            }
        } else if let Some(name) = item_name(item) {
            module.scope.insert(name, Meaning::Item);
        }
    }
}

fn item_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Whether an item is compiled for tests only: `cfg(test)`, or `cfg` of several things with `test` among them.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let words = identifiers(list.tokens.clone());
        words.iter().any(|word| word == "test") && !words.iter().any(|word| word == "not")
    })
}

fn identifiers(tokens: TokenStream) -> Vec<String> {
    let mut found = vec![];
    for tree in tokens {
        match tree {
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Group(group) => found.extend(identifiers(group.stream())),
            _ => {}
        }
    }
    found
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// One name of a `use`, or all of a module.
struct Leaf {
    path: Vec<String>,
    /// The name it has here; `None` for `*`.
    name: Option<String>,
    line: usize,
}

fn leaves(tree: &syn::UseTree) -> Vec<Leaf> {
    let mut found = vec![];
    collect_leaves(tree, &[], &mut found);
    found
}

fn collect_leaves(tree: &syn::UseTree, before: &[String], found: &mut Vec<Leaf>) {
    let line = tree.span().start().line;
    let with = |last: &syn::Ident| [before, &[last.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => collect_leaves(&path.tree, &with(&path.ident), found),
        // `use a::b::{self, c}`: the name is that of the module.
        syn::UseTree::Name(name) if name.ident == "self" => {
            found.push(Leaf { path: before.to_vec(), name: before.last().cloned(), line });
        }
        syn::UseTree::Name(name) => {
            found.push(Leaf { path: with(&name.ident), name: Some(name.ident.to_string()), line });
        }
        syn::UseTree::Rename(rename) => {
            found.push(Leaf { path: with(&rename.ident), name: Some(rename.rename.to_string()), line });
        }
        syn::UseTree::Glob(_) => found.push(Leaf { path: before.to_vec(), name: None, line }),
        syn::UseTree::Group(group) => group.items.iter().for_each(|item| collect_leaves(item, before, found)),
    }
}

/// Collects the paths of a piece of source. Names of one word are left out: a module gets them by `use`, or they are
/// its own.
#[derive(Default)]
struct Mentions {
    all: Vec<Mention>,
}

impl Mentions {
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = vec![];
        let mut line = 0;
        // Colons since the last word: two join it with the next one.
        let mut colons = 0;
        for tree in tokens {
            match tree {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end(&mut path, line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end(&mut path, line);
                    self.tokens(group.stream());
                    colons = 0;
                }
                _ => {
                    self.end(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.end(&mut path, line);
    }

    fn end(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.all.push(Mention { path, line });
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Enum(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Macro(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            syn::Item::Type(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for leaf in leaves(&item.tree) {
            self.all.push(Mention { path: leaf.path, line: leaf.line });
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if words.len() > 1 && path.leading_colon.is_none() {
            self.all.push(Mention { path: words, line: path.span().start().line });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    /// `pub(in crate::nic)` names a module without using it.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// Neither do attributes.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[cfg(test)]
mod tests;
