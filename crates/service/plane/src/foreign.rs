//! Handles that programs of this host have to regions of other hosts.
//!
//! Owns the way of such a handle from the program's wish to the end of the last operation with it; no I/O. It must
//! answer each wish once, and must tell the owner's daemon that a handle is closed only when nothing of it is in
//! flight.

mod lanes;
mod table;

use std::collections::VecDeque;
use std::net::IpAddr;

use control::{
    OpenedRegion, Reason, RegionGrant, RegionInfo, RegionLine, RegionMessage, RegionPath, RegionRefusal, Reply,
};

use crate::directory::{DirectoryConfig, RegionWish, TakeOver};
use crate::{ClientId, Party};
use lanes::{LaneWish, OfLane};
use table::Table;

/// Numbers of handles to other hosts' regions have this bit, so that they are none of this host's directory.
const FOREIGN: u64 = 1 << 63;

/// What the daemon does for these handles.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ForeignAction {
    /// Have a link to the host made if the program may reach it. Answered by [`Foreign::on_path`].
    Path { client: ClientId, request: u64, host: IpAddr },
    /// Find a number for a leased lane to the host. Answered by [`Foreign::on_lane_number`].
    Lease { open: u64, peer: IpAddr },
    /// Say something to the owner's daemon. If there is no link to it, [`Foreign::handle_peer_gone`] follows.
    Tell { peer: IpAddr, message: RegionMessage },
    /// Have the engine open the handle. Answered by [`Foreign::on_opened`].
    Open { open: u64, client: ClientId, peer: IpAddr, grant: RegionGrant, lane: Option<u32> },
    /// Have the engine close the handle; then [`Foreign::on_closed`] comes. `is_fenced`: nothing of it may reach the region.
    Close { client: ClientId, handle: u32, is_fenced: bool },
    /// Have the engine end a leased lane that no handle is on.
    EndLane { peer: IpAddr, lane: u32 },
    /// Have the engine stop all handles to a region; then [`Foreign::on_stopped`] comes.
    Stop { peer: IpAddr, region: u64, epoch: u64 },
    /// Send a message to a program.
    Send { client: ClientId, reply: Reply },
}

/// What a program wants of a region of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    Open(RegionWish),
    TakeOver(TakeOver),
}

/// How far a handle is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The host is being linked.
    Linking(Wish),
    /// The owner's daemon was asked.
    Asked,
    /// The engine opens it. If it ended meanwhile: why.
    Granted { grant: RegionGrant, line: RegionLine, ended: Option<RegionRefusal> },
    /// The program has it.
    Open { handle: u32, epoch: u64 },
    /// The engine closes it.
    Closing { handle: u32 },
}

#[derive(Debug)]
struct Open {
    client: ClientId,
    uid: u32,
    request: u64,
    peer: IpAddr,
    state: State,
    /// The region's number at its host, as soon as that has said it.
    region: Option<u64>,
    lane_wish: LaneWish,
    /// The number of its leased lane.
    lane: Option<u32>,
    /// That lane was lost while the owner's daemon was asked.
    lost: Option<Reason>,
    /// The program is gone.
    is_abandoned: bool,
}

impl Open {
    fn of_lane(&self) -> OfLane {
        OfLane { client: self.client, uid: self.uid, peer: self.peer, wish: self.lane_wish }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Foreign {
    opens: Table,
    last: u64,
    actions: VecDeque<ForeignAction>,
}

impl Foreign {
    /// No handle is there yet.
    pub(crate) fn new(config: DirectoryConfig) -> Self {
        Self { opens: Table::new(&config), last: 0, actions: VecDeque::new() }
    }

    /// Handles get numbers behind this one, so that what a program says of a handle of a daemon before this one is of none.
    pub(crate) fn begin_after(&mut self, number: u64) {
        self.last = number;
    }

    /// Whether a handle's number is one of these.
    pub(crate) fn is_foreign(open: u64) -> bool {
        open & FOREIGN != 0
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<ForeignAction> {
        self.actions.pop_front()
    }

    /// Handles, those included that are not open yet or not closed.
    pub(crate) fn count(&self) -> usize {
        self.opens.len()
    }

    // ---- opening

    /// A program wants to open a region of another host, perhaps with a lane of its own.
    pub(crate) fn handle_open(&mut self, party: Party, request: u64, peer: IpAddr, wish: RegionWish, is_leased: bool) {
        let lane_wish = if is_leased { LaneWish::Own } else { LaneWish::Shared };
        self.begin(party, request, peer, Wish::Open(wish), lane_wish);
    }

    /// A program wants to become the writer of a region of another host. Its program has one lane
    /// for all that it writes there.
    pub(crate) fn handle_take_over(&mut self, party: Party, request: u64, peer: IpAddr, wish: TakeOver) {
        self.begin(party, request, peer, Wish::TakeOver(wish), LaneWish::Writers);
    }

    fn begin(&mut self, party: Party, request: u64, peer: IpAddr, wish: Wish, lane_wish: LaneWish) {
        let Party { client, uid, .. } = party;
        if let Err(why) = self.opens.check(party, peer, lane_wish) {
            return self.answer(client, request, Err(why));
        }
        self.last += 1;
        let state = State::Linking(wish);
        let (region, lane, lost, is_abandoned) = (None, None, None, false);
        let open = Open { client, uid, request, peer, state, region, lane_wish, lane, lost, is_abandoned };
        self.opens.insert(FOREIGN | self.last, open);
        self.actions.push_back(ForeignAction::Path { client, request, host: peer });
    }

    /// The number for a leased lane; none if the link to the host is gone.
    pub(crate) fn on_lane_number(&mut self, number: u64, lane: Option<u32>) {
        let waits = |open: &&Open| open.lane_wish != LaneWish::Shared && open.lane.is_none();
        if self.opens.get(number).filter(waits).is_none() {
            return;
        }
        // Another handle of the program may have got one meanwhile.
        let lane = self.opens.lane_of_writers(number).or(lane);
        lane.into_iter().for_each(|lane| self.opens.is_on_lane(number, lane));
        let Some(open) = self.opens.get_mut(number) else { return };
        match (lane, std::mem::replace(&mut open.state, State::Asked)) {
            (Some(_), State::Linking(wish)) => self.ask(number, wish),
            _ => self.refuse(number, RegionRefusal::Reason(Reason::PeerLost)),
        }
    }

    fn ask(&mut self, number: u64, wish: Wish) {
        let Some(open) = self.opens.get(number) else { return };
        let (uid, lane) = (open.uid, open.lane);
        let message = match wish {
            Wish::Open(RegionWish { name, key, access, lease }) => {
                RegionMessage::Open { open: number, uid, name, key, access, lease, lane }
            }
            Wish::TakeOver(TakeOver { name, key, term }) => {
                let lane = lane.unwrap_or_default();
                RegionMessage::TakeOver { open: number, uid, name, key, lane, term }
            }
        };
        self.actions.push_back(ForeignAction::Tell { peer: open.peer, message });
    }

    /// Whether there is a link to the host of a wish, or why not. False: no wish waits for it.
    pub(crate) fn on_path(&mut self, client: ClientId, request: u64, result: Result<(), Reason>) -> bool {
        let waits = |number: &u64| self.opens.get(*number).is_some_and(|o| matches!(o.state, State::Linking(_)));
        let Some(number) = self.opens.of_request(client, request).find(waits) else { return false };
        let Some(open) = self.opens.get_mut(number) else { return false };
        let (peer, lane_wish) = (open.peer, open.lane_wish);
        match result {
            Ok(()) if lane_wish != LaneWish::Shared => match self.opens.lane_of_writers(number) {
                None => self.actions.push_back(ForeignAction::Lease { open: number, peer }),
                lane => self.on_lane_number(number, lane),
            },
            Ok(()) => {
                if let State::Linking(wish) = std::mem::replace(&mut open.state, State::Asked) {
                    self.ask(number, wish);
                }
            }
            Err(reason) => {
                open.state = State::Asked;
                self.refuse(number, RegionRefusal::Reason(reason));
            }
        }
        true
    }

    fn refuse(&mut self, number: u64, why: RegionRefusal) {
        if let Some(open) = self.take_out(number)
            && !open.is_abandoned
        {
            self.answer(open.client, open.request, Err(why));
        }
    }

    /// A handle is over, and the leased lane that it was the last one on.
    fn take_out(&mut self, number: u64) -> Option<Open> {
        let (open, over) = self.opens.remove(number)?;
        let peer = open.peer;
        self.actions.extend(over.map(|lane| ForeignAction::EndLane { peer, lane }));
        Some(open)
    }

    /// The owner's daemon says something of its regions. False: it is about regions of this host.
    pub(crate) fn handle_peer(&mut self, peer: IpAddr, message: RegionMessage) -> bool {
        match message {
            RegionMessage::Opened { open, result } => self.handle_answer(peer, open, result),
            RegionMessage::Stop { region, epoch, why } => self.handle_stop(peer, (region, epoch), &why),
            RegionMessage::Superseded { open, why } => self.handle_superseded(peer, open, why),
            RegionMessage::Open { .. }
            | RegionMessage::TakeOver { .. }
            | RegionMessage::Closed { .. }
            | RegionMessage::Stopped { .. }
            | RegionMessage::LoansBack { .. } => return false,
        }
        true
    }

    fn handle_answer(&mut self, peer: IpAddr, number: u64, result: Result<(RegionGrant, RegionLine), RegionRefusal>) {
        let asked = |o: &&mut Open| o.peer == peer && o.state == State::Asked;
        let Some(open) = self.opens.get_mut(number).filter(asked) else { return };
        match (result, open.lost) {
            // What was granted is of no use without its lane.
            (Ok(_), Some(reason)) => {
                self.actions.push_back(ForeignAction::Tell { peer, message: RegionMessage::Closed { open: number } });
                self.refuse(number, RegionRefusal::Reason(reason));
            }
            (Ok((grant, line)), None) => {
                open.state = State::Granted { grant, line, ended: None };
                let (client, lane) = (open.client, open.lane);
                self.opens.is_of_region(number, grant.region);
                self.actions.push_back(ForeignAction::Open { open: number, client, peer, grant, lane });
            }
            (Err(why), _) => self.refuse(number, why),
        }
    }

    /// How the engine calls the handle, or why it did not open it.
    pub(crate) fn on_opened(&mut self, number: u64, result: Result<u32, Reason>) {
        let Some(open) = self.opens.get(number) else { return };
        let (client, request, peer, is_abandoned) = (open.client, open.request, open.peer, open.is_abandoned);
        let State::Granted { grant, line, ended } = open.state.clone() else { return };
        match (result, ended) {
            (Ok(handle), None) if !is_abandoned => {
                let state = State::Open { handle, epoch: grant.epoch };
                self.opens.is_of_engine(number, handle, state);
                let (region, epoch, bytes) = (grant.region, grant.epoch, grant.bytes);
                let RegionGrant { access, last_term, .. } = grant;
                let info = RegionInfo { region, epoch, bytes, access, line, last_term };
                let opened = OpenedRegion { open: number, info, path: RegionPath::Remote { handle } };
                self.answer(client, request, Ok(opened));
            }
            (Ok(handle), ended) => {
                self.opens.is_of_engine(number, handle, State::Closing { handle });
                if let (Some(why), false) = (ended, is_abandoned) {
                    self.answer(client, request, Err(why));
                }
                self.actions.push_back(ForeignAction::Close { client, handle, is_fenced: false });
            }
            (Err(reason), _) => {
                let message = RegionMessage::Closed { open: number };
                self.actions.push_back(ForeignAction::Tell { peer, message });
                self.refuse(number, RegionRefusal::Reason(reason));
            }
        }
    }

    // ---- ends

    /// A program gives a handle back.
    pub(crate) fn handle_close(&mut self, client: ClientId, number: u64) {
        let Some(open) = self.opens.get_mut(number).filter(|open| open.client == client) else { return };
        if let State::Open { handle, .. } = open.state {
            open.state = State::Closing { handle };
            self.actions.push_back(ForeignAction::Close { client, handle, is_fenced: false });
        }
    }

    /// A program has left. The engine closes its handles by itself.
    pub(crate) fn handle_left(&mut self, client: ClientId) {
        for number in self.opens.of_program(client) {
            let Some(open) = self.opens.get_mut(number) else { continue };
            open.is_abandoned = true;
            match open.state {
                State::Linking(_) => _ = self.take_out(number),
                // Whatever the owner's daemon answers, and whether it does: it learns that this one is over.
                State::Asked => self.forget(number),
                State::Open { handle, .. } => open.state = State::Closing { handle },
                State::Granted { .. } | State::Closing { .. } => {}
            }
        }
    }

    /// Nothing that was begun with a handle is in flight any more, and the engine has forgotten it.
    pub(crate) fn on_closed(&mut self, peer: IpAddr, handle: u32) {
        if let Some(number) = self.opens.of_engine(peer, handle) {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(open) = self.take_out(number) {
            let message = RegionMessage::Closed { open: number };
            self.actions.push_back(ForeignAction::Tell { peer: open.peer, message });
        }
    }

    fn handle_stop(&mut self, peer: IpAddr, (region, epoch): (u64, u64), why: &RegionRefusal) {
        let mut over = Vec::new();
        for number in self.opens.of_region(peer, region) {
            let Some(open) = self.opens.get_mut(number) else { continue };
            match &mut open.state {
                State::Open { handle, epoch: e, .. } if *e <= epoch => {
                    over.push((number, open.client, *handle));
                    open.state = State::Closing { handle: *handle };
                }
                State::Granted { grant, ended, .. } if grant.epoch <= epoch => {
                    *ended = Some(why.clone());
                }
                _ => {}
            }
        }
        self.actions.push_back(ForeignAction::Stop { peer, region, epoch });
        for (open, client, handle) in over {
            let reply = Reply::RegionEnded { open, why: why.clone() };
            self.actions.push_back(ForeignAction::Send { client, reply });
            self.actions.push_back(ForeignAction::Close { client, handle, is_fenced: false });
        }
    }

    /// Another program took a region over that a program of this host writes. Nothing of it can land any more.
    fn handle_superseded(&mut self, peer: IpAddr, number: u64, why: RegionRefusal) {
        if self.opens.get(number).is_some_and(|open| open.peer == peer) {
            self.end(number, why);
        }
    }

    /// A handle holds no more, as its owner's daemon or the engine has said.
    fn end(&mut self, number: u64, why: RegionRefusal) {
        let Some(open) = self.opens.get_mut(number) else { return };
        let (client, is_abandoned) = (open.client, open.is_abandoned);
        match &mut open.state {
            State::Granted { ended, .. } => *ended = Some(why),
            &mut State::Open { handle, .. } => {
                open.state = State::Closing { handle };
                if !is_abandoned {
                    let reply = Reply::RegionEnded { open: number, why };
                    self.actions.push_back(ForeignAction::Send { client, reply });
                }
                self.actions.push_back(ForeignAction::Close { client, handle, is_fenced: true });
            }
            // Its answer says so too.
            State::Linking(_) | State::Asked | State::Closing { .. } => {}
        }
    }

    /// Nothing that this host began in a region is in flight any more.
    pub(crate) fn on_stopped(&mut self, peer: IpAddr, region: u64, epoch: u64) {
        self.actions.push_back(ForeignAction::Tell { peer, message: RegionMessage::Stopped { region, epoch } });
    }

    /// The link or the lane to a host is gone, and the engine knows: no handle to a region there holds any more.
    pub(crate) fn handle_peer_gone(&mut self, peer: IpAddr, reason: Reason) {
        let why = RegionRefusal::Reason(reason);
        for number in self.opens.of_peer(peer) {
            let Some(open) = self.opens.get_mut(number) else { continue };
            let (client, is_abandoned) = (open.client, open.is_abandoned);
            match &mut open.state {
                // The answer about the path is still to come.
                State::Linking(_) => {}
                State::Asked => self.refuse(number, why.clone()),
                State::Granted { ended, .. } => *ended = Some(why.clone()),
                &mut (State::Open { handle, .. } | State::Closing { handle }) => {
                    let was_open = matches!(open.state, State::Open { .. });
                    self.take_out(number);
                    self.actions.push_back(ForeignAction::Close { client, handle, is_fenced: false });
                    if was_open && !is_abandoned {
                        let reply = Reply::RegionEnded { open: number, why: why.clone() };
                        self.actions.push_back(ForeignAction::Send { client, reply });
                    }
                }
            }
        }
    }

    /// A leased lane is gone, and the engine knows: no handle on it holds any more.
    pub(crate) fn handle_lane_gone(&mut self, peer: IpAddr, lane: u32, reason: Reason) {
        for number in self.opens.lose_lane(peer, lane) {
            let Some(open) = self.opens.get_mut(number) else { continue };
            open.lost = Some(reason);
            self.end(number, RegionRefusal::Reason(reason));
        }
    }

    fn answer(&mut self, client: ClientId, request: u64, result: Result<OpenedRegion, RegionRefusal>) {
        let reply = Reply::RegionOpened { request, result };
        self.actions.push_back(ForeignAction::Send { client, reply });
    }
}

#[cfg(test)]
mod tests;
