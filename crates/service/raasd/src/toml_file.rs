//! A file of keys and values, as configuration and policy are: every mistake at once, each with its line, its table
//! and, for a key that is none, the one that was probably meant.
//!
//! Owns the words of such mistakes. What the keys are, their owners say.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::Range;

use serde::Deserializer;
use serde::de::{DeserializeOwned, Visitor};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Most problems that are reported for one file.
const PROBLEMS_MAX: usize = 100;
/// Keys by which people know one table of a list from another.
const NAMES: [&str; 2] = ["name", "address"];

/// What is wrong with a file, with the places.
pub(crate) struct Problems<'t> {
    text: &'t str,
    /// The page that explains the keys.
    page: &'static str,
    /// What to say of a key that belongs elsewhere.
    misplaced: fn(&str) -> Option<String>,
    list: Vec<(usize, String)>,
}

/// An entry of a file.
struct Entry {
    key: String,
    /// Which table of a list of tables it is in.
    table: Option<String>,
}

impl<'t> Problems<'t> {
    /// None yet, of a file that has this text.
    pub(crate) fn new(text: &'t str, page: &'static str, misplaced: fn(&str) -> Option<String>) -> Self {
        Self { text, page, misplaced, list: Vec::new() }
    }

    /// The file's values; an entry that is wrong becomes a problem and is left out, so that the others are judged too.
    pub(crate) fn read<T: DeserializeOwned + Default>(&mut self) -> Option<T> {
        let (mut document, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.syntax(error.span().map_or(0, |span| span.start), error.message());
        }
        if !errors.is_empty() {
            return None;
        }
        for _ in 0..PROBLEMS_MAX {
            let error = match T::deserialize(toml::de::Deserializer::from(document.clone())) {
                Ok(file) => return Some(file),
                Err(error) => error,
            };
            let span = error.span();
            let entry = span.as_ref().and_then(|span| Some((span, remove(document.get_mut(), span)?)));
            let Some((span, entry)) = entry else {
                self.add(0, "the file cannot be read");
                return None;
            };
            if !self.follows(span.start, error.message()) {
                self.value(span.start, &entry, error.message());
            }
        }
        Some(T::default())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// One more, at this place of the text.
    pub(crate) fn add(&mut self, at: usize, message: &str) {
        self.list.push((at, message.trim().replace('\n', ", ")));
    }

    /// All of them in the order of the file, each with its line: `LINE: message`.
    pub(crate) fn told(mut self) -> Result<(), Vec<String>> {
        self.list.sort();
        self.list.truncate(PROBLEMS_MAX);
        let told: Vec<String> = self.list.iter().map(|(at, m)| format!("{}: {m}", self.line_of(*at))).collect();
        if told.is_empty() { Ok(()) } else { Err(told) }
    }

    /// The message for an unknown key, with the known one that looks most like it.
    pub(crate) fn unknown<'a>(&self, key: &str, known: impl Iterator<Item = &'a str>) -> String {
        let nearest = known.map(|k| (strsim::damerau_levenshtein(key, k), k)).min();
        match nearest {
            Some((distance, k)) if distance <= 2.max(key.len() / 3) => {
                format!("unknown key `{key}`; did you mean `{k}`?")
            }
            _ => format!("unknown key `{key}`; see {}", self.page),
        }
    }

    /// What `toml` cannot read; of each line the first. Mostly a text without its quotes.
    fn syntax(&mut self, at: usize, message: &str) {
        let line = self.line_of(at);
        if self.list.iter().any(|(other, _)| self.line_of(*other) == line) {
            return;
        }
        let hint = self.text.lines().nth(line - 1).and_then(without_quotes);
        self.add(at, &format!("{}{}", message.trim(), hint.map(|h| format!("; {h}")).unwrap_or_default()));
    }

    /// Whether a key is missing from the table at `at` only because its value was wrong, which was reported.
    fn follows(&self, at: usize, message: &str) -> bool {
        let Some(missing) = message.strip_prefix("missing field ") else { return false };
        let end = self.text.get(at + 1..).and_then(|rest| rest.find("\n[")).map_or(self.text.len(), |n| at + 1 + n);
        self.list.iter().any(|(other, told)| (at..end).contains(other) && told.contains(&format!("{missing}: ")))
    }

    /// What `serde` says of an entry.
    fn value(&mut self, at: usize, entry: &Entry, message: &str) {
        let mut words = message.split('`').skip(1).step_by(2);
        let told = match message.strip_prefix("unknown field").and_then(|_| words.next()) {
            Some(key) => (self.misplaced)(key).unwrap_or_else(|| self.unknown(key, words)),
            None => format!("`{}`: {message}", entry.key),
        };
        let table = entry.table.as_ref().map(|table| format!("{table}: ")).unwrap_or_default();
        let told = format!("{table}{told}");
        // A list of tables goes in pieces, and a key that is none is found in each.
        if !self.list.iter().any(|(other, before)| *before == told && self.line_of(*other) == self.line_of(at)) {
            self.add(at, &told);
        }
    }

    fn line_of(&self, at: usize) -> usize {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or(self.text);
        before.bytes().filter(|b| *b == b'\n').count() + 1
    }
}

/// Removes the innermost entry whose key or value is at `span`; says which.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Entry> {
    let within = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let inner = match value.get_mut() {
            DeValue::Table(inner) => remove(inner, span),
            DeValue::Array(list) => remove_from_list(key.get_ref(), list, span),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
        if within(key.span()) || within(value.span()) {
            found = Some(key.get_ref().to_string());
        }
    }
    let key = found?;
    table.remove(key.as_str()).map(|_| Entry { key, table: None })
}

fn remove_from_list(key: &str, list: &mut DeArray<'_>, span: &Range<usize>) -> Option<Entry> {
    for value in list.iter_mut() {
        if let DeValue::Table(inner) = value.get_mut()
            && let Some(entry) = remove(inner, span)
        {
            // Where the name itself is what is wrong, the message has it.
            let table = entry.table.or_else(|| Some(format!("{key} {}", name_of(inner)?)));
            return Some(Entry { table, ..entry });
        }
    }
    let outside = |value: &&Spanned<DeValue<'_>>| span.start < value.span().start || value.span().end < span.end;
    let mut rest = DeArray::new();
    list.iter().filter(outside).cloned().for_each(|value| rest.push(value));
    let found = rest.len() < list.len();
    *list = rest;
    found.then(|| Entry { key: key.to_string(), table: None })
}

/// What people call a table of a list.
fn name_of(table: &DeTable<'_>) -> Option<String> {
    let text = |key: &&str| match table.get(*key)?.get_ref() {
        DeValue::String(text) => Some(format!("{:?}", &**text)),
        _ => None,
    };
    NAMES.iter().find_map(text)
}

/// The hint for `KEY = VALUE` whose value is a text without quotes.
fn without_quotes(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    let bare = !value.is_empty() && !value.contains(['"', '\'', '[', ']', '{', '}']);
    let is_text = value.parse::<IpAddr>().is_ok() || value.contains(|c: char| c.is_alphabetic() || c == '/');
    (bare && is_text).then(|| format!("a text stands in quotes: {key} = \"{value}\""))
}

/// What `parse` makes of a text. Of a number or boolean it says too what may stand there, such as which words.
pub(crate) fn text_as<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(String) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Text(parse, PhantomData))
}

struct Text<T, F: Fn(String) -> Result<T, String>>(F, PhantomData<T>);

impl<T, F: Fn(String) -> Result<T, String>> Text<T, F> {
    fn other<E: serde::de::Error>(self, shown: &dyn fmt::Display) -> Result<T, E> {
        let is_text = |_| format!("a text stands in quotes: \"{shown}\"");
        Err(E::custom((self.0)(shown.to_string()).map_or_else(|why| why, is_text)))
    }
}

impl<T, F: Fn(String) -> Result<T, String>> Visitor<'_> for Text<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text.to_owned()).map_err(E::custom)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<T, E> {
        self.other(&value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<T, E> {
        self.other(&value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<T, E> {
        self.other(&value)
    }
}
