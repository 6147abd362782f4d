//! Images of handwritten digits: 8 x 8 pixels from 0 to 16, as scikit-learn's `load_digits` has them. A file of lines:
//! 64 pixels, and then the digit, with commas between.

use std::fs::read_to_string;
use std::path::Path;

use crate::error::DigitsError;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits.
pub const CLASSES: usize = 10;
/// The largest pixel.
const PIXEL_MAX: f32 = 16.0;
/// Each so manieth image is for the test.
const TEST_EACH: usize = 5;

/// An image with its digit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Image {
    /// From 0 to 1.
    pub(crate) pixels: [f32; PIXELS],
    pub(crate) digit: usize,
}

/// Images to train with, and others to test with.
#[derive(Debug, Clone, PartialEq)]
pub struct Digits {
    pub(crate) training: Vec<Image>,
    pub(crate) test: Vec<Image>,
}

impl Digits {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, DigitsError> {
        let text =
            read_to_string(path).map_err(|error| DigitsError::Read { path: path.display().to_string(), error })?;
        Self::of_text(&text)
    }

    /// Reads lines. Every fifth image, from the first on, is for the test.
    pub fn of_text(text: &str) -> Result<Self, DigitsError> {
        let mut digits = Self { training: vec![], test: vec![] };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        for (number, line) in lines.enumerate() {
            let image = image(line).ok_or(DigitsError::Line { line: number + 1 })?;
            if number % TEST_EACH == 0 { &mut digits.test } else { &mut digits.training }.push(image);
        }
        let lines = digits.training.len() + digits.test.len();
        if lines < TEST_EACH { Err(DigitsError::Few { lines, min: TEST_EACH }) } else { Ok(digits) }
    }

    /// How many images are trained with.
    pub fn training_images(&self) -> usize {
        self.training.len()
    }
}

fn image(line: &str) -> Option<Image> {
    let mut cells = line.split(',').map(str::trim);
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = cells.next()?.parse::<f32>().ok().filter(|pixel| (0.0..=PIXEL_MAX).contains(pixel))? / PIXEL_MAX;
    }
    let digit = cells.next()?.parse().ok().filter(|digit| *digit < CLASSES)?;
    cells.next().is_none().then_some(Image { pixels, digit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_a_broken_line_is_named() {
        let good = format!("{}3\n", "16,".repeat(PIXELS));
        let digits = Digits::of_text(&good.repeat(10)).expect("ten images");
        assert_eq!((digits.test.len(), digits.training.len()), (2, 8));
        assert_eq!((digits.test[0].pixels[63], digits.test[0].digit), (1.0, 3));
        for bad in [
            "17,".repeat(PIXELS) + "3",
            "1,".repeat(PIXELS) + "10",
            "1,".repeat(63) + "3",
            good.trim().to_owned() + ",1",
        ] {
            let told = Digits::of_text(&(good.repeat(5) + &bad)).expect_err("a bad line");
            assert!(matches!(told, DigitsError::Line { line: 6 }), "{told}");
        }
        assert!(matches!(Digits::of_text(&good), Err(DigitsError::Few { lines: 1, .. })));
    }
}
