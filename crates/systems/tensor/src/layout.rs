//! Where the elements of a tensor are.
//!
//! Owns the arithmetic of shapes and strides. It must never let an element lie beyond the bytes that a layout counts.

use crate::dtype::DType;
use crate::error::Error;
use crate::limits::{DIMS_MAX, TENSOR_BYTES_MAX};

/// Type, shape and strides of a tensor. Element (i, j, ..) is `i * strides[0] + j * strides[1] + ..` elements behind the
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    dtype: DType,
    shape: Vec<u64>,
    strides: Vec<u64>,
    bytes: u64,
}

impl Layout {
    /// Row by row (C order), without gaps. No dimension at all is a single element.
    pub fn new(dtype: DType, shape: &[u64]) -> Result<Self, Error> {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            let below: u64 = strides[at];
            strides[at - 1] = below.checked_mul(shape[at].max(1)).ok_or(UNCOUNTED)?;
        }
        Self::strided(dtype, shape, &strides)
    }

    /// With strides in elements, which may leave gaps, or be 0.
    pub fn strided(dtype: DType, shape: &[u64], strides: &[u64]) -> Result<Self, Error> {
        if shape.len() > DIMS_MAX || strides.len() != shape.len() {
            return Err(Error::BadShape { dims: shape.len(), strides: strides.len(), max: DIMS_MAX });
        }
        let bytes = if shape.contains(&0) {
            0
        } else {
            let far = shape
                .iter()
                .zip(strides)
                .try_fold(0u64, |far, (count, stride)| far.checked_add((count - 1).checked_mul(*stride)?));
            let end = far.and_then(|last| last.checked_add(1)).and_then(|count| count.checked_mul(dtype.bytes()));
            end.ok_or(UNCOUNTED)?
        };
        if bytes > TENSOR_BYTES_MAX {
            return Err(Error::TooLarge { bytes, max: TENSOR_BYTES_MAX });
        }
        Ok(Self { dtype, shape: shape.to_vec(), strides: strides.to_vec(), bytes })
    }

    /// Of an element.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements in each dimension.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements from one to the next in each dimension.
    #[must_use]
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Bytes from the first element to the end of the last.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // It did not overflow with the largest offset, unless strides repeat elements.
        self.shape.iter().fold(1, |all: u64, count| all.saturating_mul(*count))
    }

    /// Whether elements follow each other row by row without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        Self::new(self.dtype, &self.shape).is_ok_and(|plain| {
            self.bytes == 0
                || plain.strides.iter().zip(&self.strides).zip(&self.shape).all(|((a, b), n)| a == b || *n == 1)
        })
    }

    /// [`Error::WrongType`] or [`Error::WrongShape`] unless a tensor of `other` can be copied here byte by byte.
    pub fn check_same(&self, other: &Self) -> Result<(), Error> {
        if self.dtype != other.dtype {
            return Err(Error::WrongType { into: self.dtype.name(), found: other.dtype.name() });
        }
        if self.shape != other.shape || self.strides != other.strides {
            return Err(Error::WrongShape { into: self.shape.clone(), found: other.shape.clone() });
        }
        Ok(())
    }
}

/// More bytes than a number holds.
const UNCOUNTED: Error = Error::TooLarge { bytes: u64::MAX, max: TENSOR_BYTES_MAX };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_to_the_last_element() {
        let of = |shape: &[u64]| Layout::new(DType::F32, shape).unwrap();
        assert_eq!((of(&[]).bytes(), of(&[]).elements()), (4, 1));
        assert_eq!((of(&[3, 0, 2]).bytes(), of(&[3, 0, 2]).elements()), (0, 0));
        assert_eq!((of(&[2, 3]).bytes(), of(&[2, 3]).strides()), (24, &[3, 1][..]));
        let columns = Layout::strided(DType::F32, &[2, 3], &[1, 2]).unwrap();
        assert_eq!((columns.bytes(), columns.is_contiguous()), (24, false));
        let gaps = Layout::strided(DType::I8, &[2, 2], &[10, 1]).unwrap();
        assert_eq!((gaps.bytes(), gaps.is_contiguous()), (12, false));
        assert!(Layout::strided(DType::I8, &[1, 4], &[77, 1]).unwrap().is_contiguous());
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_values() {
        assert!(matches!(Layout::new(DType::U8, &[1; 13]), Err(Error::BadShape { dims: 13, .. })));
        assert!(matches!(Layout::strided(DType::U8, &[1], &[]), Err(Error::BadShape { strides: 0, .. })));
        assert!(matches!(Layout::new(DType::U8, &[1 << 30]), Err(Error::TooLarge { .. })));
        assert!(matches!(Layout::new(DType::U8, &[1 << 40, 1 << 40]), Err(Error::TooLarge { .. })));
        assert!(matches!(Layout::strided(DType::F64, &[2], &[u64::MAX]), Err(Error::TooLarge { .. })));
        let (a, b) = (Layout::new(DType::F32, &[2]).unwrap(), Layout::new(DType::I32, &[2]).unwrap());
        assert!(matches!(a.check_same(&b), Err(Error::WrongType { .. })));
        assert!(matches!(a.check_same(&Layout::new(DType::F32, &[3]).unwrap()), Err(Error::WrongShape { .. })));
    }
}
