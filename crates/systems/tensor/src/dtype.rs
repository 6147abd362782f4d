//! What an element of a tensor is.
//!
//! Owns the codes of types in headers and their names. It must never take a type of another byte order for one of these.

use crate::error::Error;

macro_rules! types {
    ($($variant:ident = $code:literal, $bytes:literal, $name:literal, [$($alias:literal),*], $doc:literal;)*) => {
        /// The type of a tensor's elements, in little-endian byte order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = $doc] $variant,)*
        }

        impl DType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Bytes of an element.
            #[must_use]
            pub fn bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }

            /// Its name, as numpy, torch and jax have it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) fn code(self) -> u16 {
                match self { $(Self::$variant => $code,)* }
            }

            pub(crate) fn of_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            fn of_word(word: &str) -> Option<Self> {
                match word { $($name $(| $alias)* => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

types! {
    Bool = 1, 1, "bool", ["BOOL", "?", "|b1"], "One byte, 0 or 1.";
    U8 = 2, 1, "uint8", ["U8", "u1", "|u1"], "8 bits without sign.";
    I8 = 3, 1, "int8", ["I8", "i1", "|i1"], "8 bits with sign.";
    U16 = 4, 2, "uint16", ["U16", "u2", "<u2"], "16 bits without sign.";
    I16 = 5, 2, "int16", ["I16", "i2", "<i2"], "16 bits with sign.";
    U32 = 6, 4, "uint32", ["U32", "u4", "<u4"], "32 bits without sign.";
    I32 = 7, 4, "int32", ["I32", "i4", "<i4"], "32 bits with sign.";
    U64 = 8, 8, "uint64", ["U64", "u8", "<u8"], "64 bits without sign.";
    I64 = 9, 8, "int64", ["I64", "i8", "<i8"], "64 bits with sign.";
    F16 = 10, 2, "float16", ["F16", "f2", "<f2"], "IEEE 754 of 16 bits.";
    Bf16 = 11, 2, "bfloat16", ["BF16"], "The upper half of a float of 32 bits.";
    F32 = 12, 4, "float32", ["F32", "f4", "<f4"], "IEEE 754 of 32 bits.";
    F64 = 13, 8, "float64", ["F64", "f8", "<f8"], "IEEE 754 of 64 bits.";
    F8E4M3 = 14, 1, "float8_e4m3fn", ["F8_E4M3"], "8 bits: 4 of exponent, 3 of mantissa, no infinity (OCP FP8).";
    F8E5M2 = 15, 1, "float8_e5m2", ["F8_E5M2"], "8 bits: 5 of exponent, 2 of mantissa (OCP FP8).";
    C64 = 16, 8, "complex64", ["C64", "c8", "<c8"], "Two floats of 32 bits.";
    C128 = 17, 16, "complex128", ["C128", "c16", "<c16"], "Two floats of 64 bits.";
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    /// Reads a name of numpy, torch or jax (`float32`, `<f4`), or of a safetensors file (`F32`). [`Error::BigEndian`] for
    /// numpy's `>f4`.
    fn from_str(word: &str) -> Result<Self, Error> {
        if let Some(swapped) = word.strip_prefix('>')
            && Self::of_word(swapped).is_some_and(|dtype| dtype.bytes() > 1)
        {
            return Err(Error::BigEndian { dtype: word.to_owned() });
        }
        let word = word.strip_prefix("torch.").unwrap_or(word);
        Self::of_word(word).ok_or_else(|| Error::UnknownType { dtype: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back_and_big_endian_is_refused_by_name() {
        for dtype in DType::ALL {
            assert_eq!(DType::of_code(dtype.code()), Some(*dtype));
            assert_eq!(dtype.name().parse::<DType>().unwrap(), *dtype);
        }
        assert_eq!("torch.bfloat16".parse::<DType>().unwrap(), DType::Bf16);
        assert!(matches!(">f4".parse::<DType>(), Err(Error::BigEndian { .. })));
        assert!(matches!(">c16".parse::<DType>(), Err(Error::BigEndian { .. })));
        assert!(matches!("object".parse::<DType>(), Err(Error::UnknownType { .. })));
        assert_eq!(DType::of_code(0), None);
    }
}
