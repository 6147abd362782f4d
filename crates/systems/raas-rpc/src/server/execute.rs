//! One request, from its frame to its outcome.
//!
//! Owns the order: duplicate filter, deadline, service, memory. It must never run a service twice for one call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clients::KnownClient;
use super::{Counters, Shared, lock};
use crate::frame::{RequestHeader, Status};
use crate::hello::Transport;
use crate::once::{Outcome, Verdict};
use crate::service::CallInfo;

/// What came of a request.
pub(crate) enum Answer {
    /// To be sent.
    Send(Outcome),
    /// It runs in another thread, on behalf of another connection of this client.
    Running,
    /// Nobody waits for an answer.
    Nothing,
}

/// Executes a request, unless it was executed before. `arrived`: when it was seen.
pub(crate) fn execute(
    shared: &Shared,
    record: &KnownClient,
    transport: Transport,
    (header, payload): (&RequestHeader, &[u8]),
    arrived: Instant,
) -> Answer {
    let verdict = lock(&record.once).on_request(header.sequence, header.floor);
    match verdict {
        Verdict::Begin => {}
        Verdict::Again(outcome) => {
            Counters::add(&shared.counters.repeated);
            return Answer::Send(outcome);
        }
        Verdict::Running => {
            Counters::add(&shared.counters.repeated);
            return Answer::Running;
        }
        Verdict::Over => {
            Counters::add(&shared.counters.repeated);
            return Answer::Nothing;
        }
        Verdict::OutOfWindow => {
            Counters::add(&shared.counters.refused);
            return Answer::Send(outcome(Status::BadRequest, Vec::new(), arrived));
        }
    }
    let timeout = Duration::from_micros(header.timeout_us.into());
    let deadline = (header.timeout_us > 0).then(|| arrived + timeout);
    let info = CallInfo { client: record.id, sequence: header.sequence, deadline, transport };
    let began = Instant::now();
    let result = if deadline.is_some_and(|at| began >= at) {
        outcome(Status::Late, Vec::new(), began)
    } else {
        run(shared, &info, payload, began)
    };
    lock(&record.once).on_done(header.sequence, result.clone());
    record.ended.notify_all();
    Answer::Send(result)
}

fn run(shared: &Shared, info: &CallInfo, payload: &[u8], began: Instant) -> Outcome {
    Counters::add(&shared.counters.executed);
    // The service's own state is its own affair, as with a thread that panics; the server's is not touched by it.
    let result = catch_unwind(AssertUnwindSafe(|| shared.service.call(info, payload)));
    let max = shared.settings.response_bytes_max as usize;
    match result {
        Ok(Ok(response)) if response.len() > max => outcome(Status::ResponseTooLong, Vec::new(), began),
        Ok(Ok(response)) => outcome(Status::Done, response, began),
        Ok(Err(words)) => {
            let mut end = words.len().min(max);
            while !words.is_char_boundary(end) {
                end -= 1;
            }
            outcome(Status::Failed, words.as_bytes()[..end].to_vec(), began)
        }
        Err(_) => {
            tracing::error!(client = ?info.client, sequence = info.sequence, "the service panicked in a call");
            outcome(Status::Panicked, Vec::new(), began)
        }
    }
}

fn outcome(status: Status, payload: Vec<u8>, began: Instant) -> Outcome {
    let run_us = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
    Outcome { status, payload: Arc::new(payload), run_us }
}

/// Waits until a call has ended that another thread executes.
pub(crate) fn wait_for_end(shared: &Shared, record: &KnownClient, header: &RequestHeader) -> Answer {
    let mut once = lock(&record.once);
    loop {
        match once.on_request(header.sequence, header.floor) {
            Verdict::Running if !shared.is_over() => {
                let waited = record.ended.wait_timeout(once, super::TICK);
                once = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            }
            Verdict::Again(outcome) => return Answer::Send(outcome),
            _ => return Answer::Nothing,
        }
    }
}
