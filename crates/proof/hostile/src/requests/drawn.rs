//! Values of any type that messages have, drawn: numbers at their bounds, numbers that the daemon said, and one beside
//! them.
//!
//! Owns what is drawn for each kind of field, and knows no message: it is a source from which a message is read, like
//! the bytes of a socket. So a new kind of request is drawn without a word here.

use std::net::IpAddr;

use control::RegionKey;
use rand::RngExt;
use rand::rngs::SmallRng;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

/// Numbers at which something changes: table sizes, lengths, words, and one beside each is drawn too.
const BOUNDS: &[u64] = &[
    0,
    1,
    16,
    64,
    256,
    890,
    896,
    1 << 10,
    1 << 12,
    15_000,
    1 << 14,
    48 << 10,
    1 << 16,
    1 << 22,
    1 << 23,
    16 << 20,
    1 << 30,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 52,
    1 << 61,
    1 << 62,
    1 << 63,
    u64::MAX,
];
/// Bytes and elements of one message at most, so that it fits a frame.
const ELEMENTS_MAX: usize = 40_000;
/// Numbers that are remembered.
const KNOWN_MAX: usize = 64;

/// What requests may name, so that they mean something.
#[derive(Debug)]
pub(crate) struct Known {
    /// Hosts, this one first.
    pub(crate) hosts: Vec<IpAddr>,
    pub(crate) ports: Vec<u16>,
    pub(crate) names: Vec<String>,
    pub(crate) key: RegionKey,
    numbers: Vec<u64>,
}

impl Known {
    pub(crate) fn new(hosts: Vec<IpAddr>, ports: Vec<u16>, names: Vec<String>, key: RegionKey) -> Self {
        Self { hosts, ports, names, key, numbers: Vec::new() }
    }

    /// The daemon said a number: a handle, a connection, a chunk.
    pub(crate) fn hear(&mut self, number: u64, rng: &mut SmallRng) {
        if self.numbers.len() < KNOWN_MAX {
            self.numbers.push(number);
        } else {
            self.numbers[rng.random_range(0..KNOWN_MAX)] = number;
        }
    }
}

/// Draws a message.
pub(crate) fn draw<T: DeserializeOwned>(known: &Known, rng: &mut SmallRng) -> Result<T, Error> {
    T::deserialize(&mut Source { known, rng, octets: Vec::new(), left: ELEMENTS_MAX })
}

struct Source<'a> {
    known: &'a Known,
    rng: &'a mut SmallRng,
    /// Bytes that come next.
    octets: Vec<u8>,
    left: usize,
}

impl Source<'_> {
    fn number(&mut self) -> u64 {
        let known = &self.known.numbers;
        let at = match self.rng.random_range(0..8) {
            0..4 if !known.is_empty() => known[self.rng.random_range(0..known.len())],
            7 => return self.rng.random(),
            _ => BOUNDS[self.rng.random_range(0..BOUNDS.len())],
        };
        match self.rng.random_range(0..4) {
            0 => at.wrapping_add(1),
            1 => at.wrapping_sub(1),
            _ => at,
        }
    }

    fn port(&mut self) -> u16 {
        let known = &self.known.ports;
        if !known.is_empty() && self.rng.random_bool(0.5) {
            return known[self.rng.random_range(0..known.len())];
        }
        self.number() as u16
    }

    /// Elements of a list: mostly few, now and then as many as there is room for.
    fn count(&mut self) -> usize {
        let count = match self.rng.random_range(0..16) {
            0 => self.left,
            1 | 2 => usize::try_from(self.number()).unwrap_or(usize::MAX),
            _ => self.rng.random_range(0..9),
        };
        let count = count.min(self.left);
        self.left -= count;
        count
    }

    fn text(&mut self) -> String {
        let names = &self.known.names;
        if !names.is_empty() && self.rng.random_bool(0.7) {
            return names[self.rng.random_range(0..names.len())].clone();
        }
        let letter = ["a", "\u{1b}", "\u{202e}", "ß", "\n"][self.rng.random_range(0..5)];
        letter.repeat(self.count().min(ELEMENTS_MAX / 4))
    }
}

/// Numbers of so many bits.
macro_rules! numbers {
    ($($deserialize:ident $visit:ident $of:ty),*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $of)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Source<'_> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a field that does not say what it is"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is = self.rng.random();
        visitor.visit_bool(is)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let byte = self.octets.pop().unwrap_or_else(|| self.rng.random());
        visitor.visit_u8(byte)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let port = self.port();
        visitor.visit_u16(port)
    }

    numbers!(deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64);

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_char('a')
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let text = self.text();
        visitor.visit_string(text)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_byte_buf(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let count = self.count();
        let bytes = (0..count).map(|_| self.rng.random()).collect();
        visitor.visit_byte_buf(bytes)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.rng.random() { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let count = self.count();
        visitor.visit_seq(Elements(self, count))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Error> {
        if self.rng.random_bool(0.7) {
            self.octets = match count {
                4 => match self.known.hosts[self.rng.random_range(0..self.known.hosts.len())] {
                    IpAddr::V4(host) => host.octets().to_vec(),
                    IpAddr::V6(_) => Vec::new(),
                },
                control::REGION_KEY_BYTES => self.known.key.as_bytes().to_vec(),
                _ => Vec::new(),
            };
            self.octets.reverse();
        }
        visitor.visit_seq(Elements(self, count))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements(self, count))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let count = self.count();
        visitor.visit_map(Elements(self, count))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements(self, fields.len()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Variant(self, variants.len()))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a name where there are none"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}

/// So many that are still to come.
struct Elements<'a, 'b>(&'a mut Source<'b>, usize);

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.1 == 0 {
            return Ok(None);
        }
        self.1 -= 1;
        seed.deserialize(&mut *self.0).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.1)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.0)
    }
}

/// One of so many.
struct Variant<'a, 'b>(&'a mut Source<'b>, usize);

impl<'de, 'a, 'b> EnumAccess<'de> for Variant<'a, 'b> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let number = u32::try_from(self.0.rng.random_range(0..self.1)).unwrap_or(0);
        let chosen = seed.deserialize(serde::de::value::U32Deserializer::<Error>::new(number))?;
        Ok((chosen, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements(self.0, count))
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements(self.0, fields.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use control::Request;
    use rand::SeedableRng;

    use super::*;

    fn known() -> Known {
        let host = IpAddr::from([127, 1, 2, 3]);
        let mut known = Known::new(vec![host], vec![7], vec!["region".into()], RegionKey::new([5; 16]));
        known.hear(1000, &mut SmallRng::seed_from_u64(1));
        known
    }

    #[test]
    fn every_kind_of_request_is_drawn_and_the_seed_decides_which() {
        let known = known();
        let drawn = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            (0..4000).map(|_| draw::<Request>(&known, &mut rng).unwrap()).collect::<Vec<_>>()
        };
        let requests = drawn(1);
        assert_eq!(requests, drawn(1));
        assert_ne!(requests, drawn(2));
        // One that is longer than a frame is drawn too, and is not sent.
        let kinds: BTreeSet<u8> =
            requests.iter().filter_map(|one| control::encode(one).ok()).map(|frame| frame[0]).collect();
        let all: BTreeSet<u8> = (0..=*kinds.last().unwrap()).collect();
        assert!(kinds == all && kinds.len() > 40, "{kinds:?}");
        let connects =
            || requests.iter().filter_map(|one| if let Request::Connect { to, .. } = one { Some(to) } else { None });
        assert!(connects().any(|to| to.ip() == known.hosts[0] && to.port() == 7), "what is known is asked for");
        let closes = requests
            .iter()
            .filter_map(|one| if let Request::RegionClose { open, .. } = one { Some(*open) } else { None });
        let closes: BTreeSet<u64> = closes.collect();
        assert!([999, 1000, 1001, u64::MAX].iter().any(|open| closes.contains(open)), "{closes:?}");
    }
}
