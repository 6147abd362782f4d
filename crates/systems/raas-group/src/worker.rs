//! What waits for daemons: opening the memories of other members, and taking them over.
//!
//! Owns a thread for each member, which the driver's thread never waits for: a host that cannot be reached delays nobody.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use raas::{Region, RegionAccess, RegionKey, Session};

use crate::class::Class;
use crate::number;
use crate::wish::{Mailbox, News};

/// What a worker is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job {
    Open,
    TakeOver { id: u64, fence: u64 },
}

/// Whose memory a worker is for.
pub(crate) struct Target {
    pub(crate) session: Session,
    pub(crate) member: u8,
    pub(crate) host: IpAddr,
    pub(crate) region: String,
    pub(crate) key: RegionKey,
    pub(crate) class: Class,
}

/// Starts one. It ends when its jobs cannot come any more.
pub(crate) fn start(target: Target, mailbox: Arc<dyn Mailbox>) -> Sender<Job> {
    let (jobs, todo) = channel();
    let name = format!("raas-group-{}", target.member);
    let work = move || work(&target, &todo, &*mailbox);
    if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
        // Its jobs have no end then, and the driver takes the member for lost.
        tracing::warn!(%error, "no thread for a member of a group");
    }
    jobs
}

fn work(target: &Target, todo: &Receiver<Job>, mailbox: &dyn Mailbox) {
    let Target { session, member, host, region, key, class } = target;
    while let Ok(job) = todo.recv() {
        mailbox.tell(match job {
            Job::Open => {
                let result = Region::open_for(session, *host, region, *key, RegionAccess::READ)
                    .and_then(|region| Ok((number::of(&region, *class)?, region)));
                News::Opened { member: *member, result }
            }
            Job::TakeOver { id, fence } => {
                // Its number is read behind the grant: a memory without one is given up at once.
                let result = Region::take_over(session, *host, region, *key, fence)
                    .and_then(|(region, last)| Ok((number::of(&region, *class)?, region, last)));
                News::Taken { member: *member, id, fence, result }
            }
        });
    }
}
