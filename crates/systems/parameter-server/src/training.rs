//! The load of Figure 17: softmax regression on images of digits. Each worker has a share of the images. For each batch
//! it pulls all parameters, computes the gradient, and pushes its step.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::digits::{CLASSES, Digits, Image, PIXELS};
use crate::error::WorkError;
use crate::link::Over;
use crate::worker::Worker;

/// Parameters of one class: a weight for each pixel, and one more that is added.
const OF_CLASS: usize = PIXELS + 1;
/// Parameters of the model, each a key.
pub const PARAMETERS: usize = CLASSES * OF_CLASS;

/// A training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// Workers, each a thread with a share of the images.
    pub workers: usize,
    /// Images between a pull and its push.
    pub batch: usize,
    /// How often each image is used.
    pub epochs: u32,
    /// How far a step goes along the gradient of its batch.
    pub rate: f32,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trained {
    /// All epochs of all workers, without connecting and without the test.
    pub took: Duration,
    /// Which part of the test's images the model names rightly.
    pub accuracy: f64,
}

/// Trains from zero, and tests the model that the servers then hold.
pub fn train(over: &Over, servers: &[SocketAddr], digits: &Digits, wanted: Training) -> Result<Trained, WorkError> {
    let Training { workers, batch, .. } = wanted;
    let share = digits.training.len() / workers.max(1);
    if batch == 0 || batch > share || workers == 0 {
        return Err(WorkError::Batch { batch, share });
    }
    let mut connected = (0..workers).map(|_| Worker::connect(over, servers)).collect::<Result<Vec<_>, _>>()?;
    connected[0].reset()?;
    let keys = keys(&connected[0])?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = connected
            .iter_mut()
            .zip(digits.training.chunks(share))
            .map(|(worker, images)| {
                let keys = &keys;
                scope.spawn(move || work(worker, images, keys, wanted))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    let took = begin.elapsed();
    let mut model = vec![0.0; PARAMETERS];
    connected[0].pull(&keys, &mut model)?;
    let right = digits.test.iter().filter(|image| best(&scores(&model, image)) == image.digit).count();
    Ok(Trained { took, accuracy: right as f64 / digits.test.len() as f64 })
}

/// The parameters' keys, shared out to all servers.
fn keys(worker: &Worker) -> Result<Vec<u64>, WorkError> {
    let servers = worker.servers() as u64;
    let (all, each) = (worker.keys(), worker.keys() / servers);
    let of_one = (PARAMETERS as u64).div_ceil(servers);
    if of_one > each {
        return Err(WorkError::KeyOutside { key: of_one, keys: all });
    }
    Ok((0..PARAMETERS as u64).map(|n| n / of_one * each + n % of_one).collect())
}

fn work(worker: &mut Worker, images: &[Image], keys: &[u64], wanted: Training) -> Result<(), WorkError> {
    let (mut model, mut step) = (vec![0.0; PARAMETERS], vec![0.0; PARAMETERS]);
    for _ in 0..wanted.epochs {
        // The last batch may be smaller.
        for batch in images.chunks(wanted.batch) {
            worker.pull(keys, &mut model)?;
            step.fill(0.0);
            let rate = wanted.rate / (batch.len() * wanted.workers) as f32;
            batch.iter().for_each(|image| descend(&model, image, rate, &mut step));
            worker.push(keys, &step)?;
        }
    }
    Ok(())
}

/// How much each class's score is.
fn scores(model: &[f32], image: &Image) -> [f32; CLASSES] {
    let mut scores = [0.0; CLASSES];
    for (score, of_class) in scores.iter_mut().zip(model.chunks_exact(OF_CLASS)) {
        *score = of_class[PIXELS] + of_class.iter().zip(&image.pixels).map(|(w, p)| w * p).sum::<f32>();
    }
    scores
}

fn best(scores: &[f32; CLASSES]) -> usize {
    (0..CLASSES).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or_default()
}

/// Adds an image's part of the step.
fn descend(model: &[f32], image: &Image, rate: f32, step: &mut [f32]) {
    let mut likely = scores(model, image);
    let most = likely.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    likely.iter_mut().for_each(|score| *score = (*score - most).exp());
    let all: f32 = likely.iter().sum();
    for (class, (likely, of_class)) in likely.iter().zip(step.chunks_exact_mut(OF_CLASS)).enumerate() {
        let error = likely / all - f32::from(u8::from(class == image.digit));
        of_class.iter_mut().zip(&image.pixels).for_each(|(step, pixel)| *step -= rate * error * pixel);
        of_class[PIXELS] -= rate * error;
    }
}
