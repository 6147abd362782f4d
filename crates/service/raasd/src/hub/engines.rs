//! The queues to the engines.
//!
//! Owns the commands that a queue had no room for. It must never reorder the commands of one engine, and must never
//! wait for one engine while another could take its commands.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::command::Command;
use crate::sleeper::Bell;

/// The queue to one engine.
#[derive(Debug)]
struct Line {
    commands: mpsc::Sender<Command>,
    bell: Bell,
    /// Commands that the queue had no room for.
    backlog: VecDeque<Command>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Engines(Vec<Line>);

impl Engines {
    /// Of the engines in the order of their numbers.
    pub(crate) fn new(lines: Vec<(mpsc::Sender<Command>, Bell)>) -> Self {
        let line = |(commands, bell)| Line { commands, bell, backlog: VecDeque::new() };
        Self(lines.into_iter().map(line).collect())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Queues a command; [`Self::send`] sends it.
    pub(crate) fn queue(&mut self, engine: u32, command: Command) {
        if let Some(line) = self.0.get_mut(engine as usize) {
            line.backlog.push_back(command);
        }
    }

    /// Whether every queue took what was for it.
    pub(crate) fn have_room(&self) -> bool {
        self.0.iter().all(|line| line.backlog.is_empty())
    }

    /// Waits until a queue that was full has room.
    pub(crate) async fn room(&self) {
        let full = self.0.iter().filter(|line| !line.backlog.is_empty());
        let reserving: Vec<_> = full.map(|line| Box::pin(line.commands.reserve())).collect();
        if !reserving.is_empty() {
            first_of(reserving).await;
        }
    }

    /// Moves the commands on, as far as there is room.
    pub(crate) fn send(&mut self) {
        for line in &mut self.0 {
            let mut rang = false;
            while let Some(command) = line.backlog.pop_front() {
                match line.commands.try_send(command) {
                    Ok(()) => rang = true,
                    Err(mpsc::error::TrySendError::Full(back)) => {
                        line.backlog.push_front(back);
                        break;
                    }
                    // The thread has ended, and ends the daemon.
                    Err(mpsc::error::TrySendError::Closed(_)) => {}
                }
            }
            if rang {
                line.bell.ring();
            }
        }
    }
}

/// Ends with the first of these that ends.
async fn first_of<F: Future + Unpin>(mut all: Vec<F>) {
    std::future::poll_fn(|context| {
        let ended = all.iter_mut().any(|one| std::pin::Pin::new(one).poll(context).is_ready());
        if ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plane::ProgramCommand;

    use super::*;
    use crate::sleeper::Sleeper;

    fn port(n: u16) -> Command {
        let command = ProgramCommand::Unlisten { port: n };
        Command::Engine(dispatch::Command::Program { app: engine::AppId(0), command, memory: None })
    }

    fn ports(queue: &mut mpsc::Receiver<Command>) -> Vec<u16> {
        let next = || match queue.try_recv().ok()? {
            Command::Engine(dispatch::Command::Program { command: ProgramCommand::Unlisten { port }, .. }) => {
                Some(port)
            }
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[tokio::test]
    async fn a_full_queue_holds_up_no_other_and_keeps_its_order() {
        let sleepers = [(); 2].map(|()| Sleeper::new().unwrap());
        let (queues, mut ends): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel(2)).unzip();
        let mut engines = Engines::new(queues.into_iter().zip(sleepers.iter().map(Sleeper::bell)).collect());
        assert_eq!(engines.count(), 2);
        (0..5).for_each(|n| engines.queue(0, port(n)));
        engines.queue(1, port(9));
        engines.queue(7, port(8));
        engines.send();
        assert!(!engines.have_room());
        assert_eq!(ports(&mut ends[1]), [9]);
        assert!(tokio::time::timeout(Duration::from_millis(1), engines.room()).await.is_err(), "it is full");
        assert_eq!(ports(&mut ends[0]), [0, 1]);
        engines.room().await;
        engines.send();
        assert_eq!(ports(&mut ends[0]), [2, 3]);
        engines.send();
        assert!(engines.have_room());
        assert_eq!(ports(&mut ends[0]), [4]);
        // One that has ended takes everything.
        drop(ends.remove(0));
        (0..5).for_each(|n| engines.queue(0, port(n)));
        engines.send();
        assert!(engines.have_room());
    }
}
