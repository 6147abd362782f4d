//! Text of others: what a person reads of it, in a log, a table, a terminal or a page.
//!
//! Owns which characters may stand there. Text is made plain where its bytes enter ([`foreign`]), so that nobody who shows
//! it has to think of that.

use serde::{Deserialize, Deserializer};

/// Bytes of one text that are kept.
const BYTES_MAX: usize = 1024;
/// Characters without a picture that change how others look, or where a line ends: format characters (Unicode category
/// Cf, which has the marks of direction), and the separators of lines and paragraphs.
const UNSEEN: &[(char, char)] = &[
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1345f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether a character is only itself where it stands: no control character, no mark of direction, no end of a line.
pub fn is_plain(c: char) -> bool {
    !c.is_control() && !UNSEEN.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// Text with U+FFFD for each character that is not plain, cut to 1,024 bytes.
pub fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars().map(|c| if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER }) {
        if plain.len() + c.len_utf8() > BYTES_MAX {
            break;
        }
        plain.push(c);
    }
    plain
}

/// Reads text for people from a message: for fields of messages (`#[serde(deserialize_with = "control::foreign")]`).
pub fn foreign<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(plain(&String::deserialize(from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PeerMessage, Reason, Reply, decode, encode};

    #[test]
    fn what_changes_the_look_of_others_is_replaced() {
        for c in ['\u{1b}', '\n', '\r', '\0', '\u{85}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{200b}'] {
            assert!(!is_plain(c), "{c:?}");
            assert_eq!(plain(&format!("a{c}b")), "a\u{fffd}b");
        }
        assert_eq!(plain("größe 名前 🦀 a-b_c"), "größe 名前 🦀 a-b_c");
        assert_eq!(plain(&"é".repeat(BYTES_MAX)).len(), BYTES_MAX);
        assert_eq!(plain(&format!("x{}", "é".repeat(BYTES_MAX))).len(), BYTES_MAX - 1, "no half character");
    }

    #[test]
    fn a_peer_and_a_daemon_cannot_write_to_a_terminal() {
        let evil = "\u{1b}]0;owned\u{7}\n\u{202e}";
        let hello = PeerMessage::Hello {
            version: 1,
            release: evil.into(),
            instance: 1,
            address: [127, 0, 0, 1].into(),
            challenge: [0; crate::CHALLENGE_BYTES],
        };
        let bye = PeerMessage::Bye { reason: Reason::Policy, detail: evil.into() };
        for message in [hello, bye] {
            let read: PeerMessage = decode(&encode(&message).unwrap()).unwrap();
            let (PeerMessage::Hello { release: words, .. } | PeerMessage::Bye { detail: words, .. }) = read else {
                panic!("{read:?}");
            };
            assert!(words.chars().all(is_plain) && words.contains("owned"), "{words:?}");
        }
        let reply = Reply::Detached { reason: Reason::Policy, detail: evil.into() };
        let Reply::Detached { detail, .. } = decode(&encode(&reply).unwrap()).unwrap() else { panic!("{reply:?}") };
        assert!(detail.chars().all(is_plain));
    }

    /// The judge of the kind: a field that is new is made plain, or is one that nobody shows before it was checked.
    #[test]
    fn every_text_of_a_message_is_made_plain_or_is_a_name_that_is_checked() {
        const MARKS: [&str; 2] =
            ["#[serde(deserialize_with = \"foreign\")]", "#[serde(deserialize_with = \"control::foreign\")]"];
        /// Names by which something is looked up; whoever makes one is refused if it is not plain.
        const LOOKED_UP: &[&str] = &["name: String,", "pub name: String,", "kernel: String,"];
        let messages = [include_str!("app.rs"), include_str!("peer.rs"), include_str!("region.rs")];
        // What other hosts say in the answers that such a message brings is only shown.
        let answers = [include_str!("../../kernels/src/failure.rs")];
        let mut fields = 0;
        let lines = |text: &'static str| text.lines().skip(1).zip(text.lines());
        let all = messages.map(|text| (text, LOOKED_UP)).into_iter().chain(answers.map(|text| (text, &[][..])));
        for ((line, before), looked_up) in all.flat_map(|(text, looked_up)| lines(text).map(move |l| (l, looked_up))) {
            let line = line.trim();
            if !line.ends_with(": String,") {
                continue;
            }
            fields += 1;
            assert!(MARKS.contains(&before.trim()) || looked_up.contains(&line), "`{line}` behind `{before}`");
        }
        assert!(fields > 16, "{fields} fields were found");
    }
}
