//! What the hostile tenant does with datagram sockets: bytes that change all the time, floods to all ports, all ports
//! and paths.

use std::net::{IpAddr, SocketAddr};

use control::Request;
use rand::{Rng, RngExt};
use shm::DatagramRecord;

use super::Tenant;
use super::loose::Loose;
use crate::polite::datagrams::PORT;
use crate::raw::{RawApp, RawError};

const RING_BYTES: u32 = 65_536;
/// Sockets that flood at a time.
const FLOODS: usize = 4;
/// Binds after which it looks for something else.
const BINDS_MAX: u64 = 4096;

impl Tenant {
    fn loose(app: &mut RawApp) -> Result<Loose, RawError> {
        Ok(Loose::new(app.bind(0, RING_BYTES)?))
    }

    /// Records whose payload, and now and then whose header, is rewritten after it was published; and its own receive
    /// ring.
    pub(super) fn scribble_over_datagrams(&mut self) -> Result<u64, RawError> {
        let mut writes = 0;
        let mut noise = [0; 4096];
        while self.has_time() {
            let mut app = self.attach("scribbles-over-datagrams")?;
            let mut loose = Self::loose(&mut app)?;
            while self.has_time() {
                self.rng.fill_bytes(&mut noise);
                let record = DatagramRecord { addr: self.anybody(), bytes: self.rng.random_range(0..4000) };
                if loose.room() < record.ring_bytes() {
                    loose.put(loose.tail(), &noise)?;
                    std::thread::yield_now();
                }
                while loose.room() < record.ring_bytes() && self.has_time() {
                    std::thread::yield_now();
                }
                let at = loose.tail();
                loose.put(at, &record.to_bytes())?;
                loose.publish(record.ring_bytes());
                app.ring(loose.slot());
                let from = if self.rng.random_bool(0.02) { 0 } else { record.to_bytes().len() as u64 };
                loose.put(at + from, &noise[..usize::from(record.bytes).min(noise.len())])?;
                loose.scribble_over_arrivals(self.rng.random(), &noise)?;
                writes += 1;
                match app.drain() {
                    Err(e) if e.is_end() => break,
                    other => other?,
                }
            }
        }
        Ok(writes)
    }

    /// Whole records as fast as they are taken: to the polite sockets, to nobody, to hosts that do not exist, too long
    /// ones.
    pub(super) fn flood_datagrams(&mut self) -> Result<u64, RawError> {
        let mut app = self.attach("floods-datagrams")?;
        let mut sockets: Vec<Loose> = (0..FLOODS).map(|_| Self::loose(&mut app)).collect::<Result<_, _>>()?;
        let mut sent = 0;
        while self.has_time() {
            for loose in &mut sockets {
                loop {
                    let most = if self.rng.random_bool(0.1) { 60_000 } else { 4080 };
                    let record = DatagramRecord { addr: self.anybody(), bytes: self.rng.random_range(0..most) };
                    if loose.room() < record.ring_bytes() {
                        break;
                    }
                    loose.put(loose.tail(), &record.to_bytes())?;
                    loose.publish(record.ring_bytes());
                    sent += 1;
                }
                app.ring(loose.slot());
            }
            std::thread::yield_now();
        }
        app.drain()?;
        Ok(sent)
    }

    /// All ports that it is given, those that others have, and the paths to hosts that do not exist.
    pub(super) fn hoard_ports(&mut self) -> Result<u64, RawError> {
        let mut app = self.attach("hoards-ports")?;
        let mut asked = 0;
        match app.bind(PORT, 0) {
            Err(RawError::No(control::Reason::PortInUse)) => asked += 1,
            Err(e) => return Err(e),
            Ok(_) => return Err(RawError::Unexpected("the port of a polite socket was given away".into())),
        }
        while self.has_time() && asked < BINDS_MAX {
            match app.bind(self.rng.random(), 0) {
                Ok(_) | Err(RawError::No(control::Reason::PortInUse)) => asked += 1,
                Err(RawError::No(_)) => break,
                Err(e) => return Err(e),
            }
        }
        while self.has_time() {
            let request = app.number();
            let to = self.anybody().ip();
            app.send(&Request::DatagramPath { request, to }, &[])?;
            app.drain()?;
            asked += 1;
            std::thread::yield_now();
        }
        Ok(asked)
    }

    /// The polite sockets of both hosts, other ports there, hosts without a daemon, and addresses that no host has.
    fn anybody(&mut self) -> SocketAddr {
        let (far, near) = (self.home.far.ip(), self.home.near.ip());
        match self.rng.random_range(0..10) {
            0..=2 => SocketAddr::new(far, PORT),
            3 | 4 => SocketAddr::new(near, PORT),
            5 => SocketAddr::new(far, self.rng.random()),
            6 => SocketAddr::new(near, self.rng.random()),
            7 => SocketAddr::new(far, 0),
            8 => SocketAddr::new(IpAddr::from([127, 250, 250, self.rng.random_range(1..=200)]), PORT),
            _ => {
                let nobody = [[0, 0, 0, 0], [224, 0, 0, 1], [255, 255, 255, 255]];
                SocketAddr::new(IpAddr::from(nobody[self.rng.random_range(0..nobody.len())]), PORT)
            }
        }
    }
}
