//! What programs say, on its way to the control plane: users take turns.
//!
//! Owns that order, and how much of each user waits. What one program says keeps its order. However many programs of
//! one user speak, what another's says finds at most one message of each user before it and its own user's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::user_turns::{Rooms, UserTurns};

/// Messages of one user's programs that wait; further ones wait in their sockets.
const WAITING_PER_USER_MAX: usize = 64;

/// Each has the room that it takes.
type Waiting<T> = UserTurns<(T, OwnedSemaphorePermit)>;

/// The control plane has ended.
#[derive(Debug)]
pub(crate) struct Ended;

/// The programs' end.
#[derive(Debug)]
pub(crate) struct ClientQueue<T> {
    waiting: Arc<Mutex<Waiting<T>>>,
    rooms: Arc<Rooms>,
    /// As many as wait.
    told: mpsc::UnboundedSender<()>,
}

/// The control plane's end.
#[derive(Debug)]
pub(crate) struct ClientInputs<T> {
    waiting: Arc<Mutex<Waiting<T>>>,
    told: mpsc::UnboundedReceiver<()>,
}

pub(crate) fn queue<T>() -> (ClientQueue<T>, ClientInputs<T>) {
    let (told, hears) = mpsc::unbounded_channel();
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let rooms = Arc::new(Rooms::new(WAITING_PER_USER_MAX));
    (ClientQueue { waiting: Arc::clone(&waiting), rooms, told }, ClientInputs { waiting, told: hears })
}

fn lock<T>(waiting: &Mutex<Waiting<T>>) -> MutexGuard<'_, Waiting<T>> {
    // The turns are whole between statements, whichever thread panicked.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Clone for ClientQueue<T> {
    fn clone(&self) -> Self {
        Self { waiting: Arc::clone(&self.waiting), rooms: Arc::clone(&self.rooms), told: self.told.clone() }
    }
}

impl<T> ClientQueue<T> {
    /// Waits for room among what its user's programs said.
    pub(crate) async fn send(&self, uid: u32, input: T) -> Result<(), Ended> {
        let room = self.rooms.enter(uid).await.ok_or(Ended)?;
        let mut waiting = lock(&self.waiting);
        if self.told.is_closed() {
            return Err(Ended);
        }
        waiting.push(uid, (input, room));
        self.told.send(()).map_err(|_| Ended)
    }
}

impl<T> ClientInputs<T> {
    /// The next message; none when no program can say anything any more.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        self.told.recv().await?;
        lock(&self.waiting).next(|_| true).map(|(_, (input, _))| input)
    }
}

impl<T> Drop for ClientInputs<T> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        self.told.close();
        // Who waits for room has it now, and is told.
        *waiting = Waiting::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_user_never_holds_up_another_and_each_keeps_its_order() {
        let (queue, mut inputs) = queue();
        let many = 3 * WAITING_PER_USER_MAX as u64;
        let storm = tokio::spawn({
            let queue = queue.clone();
            async move {
                for number in 0..many {
                    queue.send(5, number).await.unwrap();
                }
            }
        });
        while lock(&queue.waiting).count_of(5) < WAITING_PER_USER_MAX {
            tokio::task::yield_now().await;
        }
        queue.send(6, 1000).await.unwrap();
        queue.send(6, 1001).await.unwrap();
        let mut order = Vec::new();
        for _ in 0..many + 2 {
            order.push(inputs.recv().await.unwrap());
        }
        assert_eq!(order[..4], [0, 1000, 1, 1001]);
        order.retain(|number| *number < 1000);
        assert_eq!(order, (0..many).collect::<Vec<_>>());
        storm.await.unwrap();
        drop(queue);
        assert_eq!(inputs.recv().await, None);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_told_when_the_control_plane_ends() {
        let (queue, inputs) = queue();
        for number in 0..WAITING_PER_USER_MAX as u64 {
            queue.send(5, number).await.unwrap();
        }
        let waits: Vec<_> = (0..3)
            .map(|number| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.send(5, number).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(inputs);
        for wait in waits {
            assert!(wait.await.unwrap().is_err());
        }
        assert!(queue.send(6, 1).await.is_err());
    }
}
