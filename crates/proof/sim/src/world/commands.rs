//! What the control plane tells the engines, each of which takes it soon and in order.
//!
//! Owns that order: nothing is said to an engine beside its queue.

use control::Reason;
use engine::{AppId, DatagramBind, Dial, LaneAt, OperationsOpen};
use plane::ProgramCommand;

use super::event::Command;
use super::{Event, World};
use crate::address::At;
use crate::links::Input;
use crate::regions::RegionInput;

impl World {
    pub(super) fn command(&mut self, at: At, command: Command) {
        let delay = self.some(self.plan.queue_delay_max);
        let (due, life) = (self.now + delay, self.life(at.host));
        let Some(running) = self.up(at.host) else { return };
        let Some(told_at) = running.control.told_at.get_mut(at.engine as usize) else { return };
        *told_at = due.max(*told_at);
        let due = *told_at;
        self.queue.push(due, Event::Command { at, life, command: Box::new(command) });
    }

    pub(super) fn on_command(&mut self, at: At, life: u32, command: Box<Command>) {
        if self.life(at.host) != life {
            return;
        }
        if let Some(until) = self.paused(at.host) {
            return self.queue.push(until, Event::Command { at, life, command });
        }
        let now = self.now;
        self.trace.text(now, || format!("engine {at:?}: {command:?}"));
        let Some(driven) = self.driven(at) else { return };
        driven.tap.now = now;
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        match *command {
            Command::Program { app, command } => self.execute_for_program(at, app, command),
            Command::Lane { lane, command } => self.execute_for_lane(at, lane, command),
            Command::Region(command) => self.execute_for_region(at, command),
            Command::Grant { region, epoch, memory, peer, open, lane } => {
                let answer = self.grant(at, (region, epoch), memory, (peer, open, lane));
                self.tell_of_regions(at, answer);
            }
            Command::Admit { open, answer } => engine.admit(now, tap, open, answer),
            Command::AskRoute { peer, number, route } => {
                let stream = engine.stream_of_route(peer, route);
                self.tell_plane(at.host, Input::StreamOfRoute { engine: at.engine, peer, number, stream });
            }
            Command::Detach { app } => engine.detach(now, tap, app, Reason::PeerAppDied),
        }
        self.after_command(at);
    }

    fn execute_for_program(&mut self, at: At, app: AppId, command: ProgramCommand) {
        let now = self.now;
        let Some(driven) = self.driven(at) else { return };
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        match command {
            ProgramCommand::Unlisten { port } => engine.unlisten(now, tap, app, port),
            ProgramCommand::Accepted { port, connection } => engine.accepted(app, port, connection),
            ProgramCommand::Connect { request, connection, to, local, ring_bytes, kind } => {
                engine.connect(now, tap, app, request, Dial { connection, to, local, ring_bytes, kind });
            }
            ProgramCommand::CancelConnect { request } => engine.cancel_connect(now, tap, app, request),
            ProgramCommand::Bind { request, socket, port, ring_bytes } => {
                engine.bind_datagram(app, request, DatagramBind { socket, port, ring_bytes });
            }
            ProgramCommand::OpenOperations { request, queue, ring_bytes } => {
                engine.open_operations(app, request, OperationsOpen { queue, ring_bytes });
            }
            ProgramCommand::Path { request, to } => engine.datagram_path(now, tap, app, request, to),
            ProgramCommand::ChunkNotTaken { chunk } => engine.chunk_not_taken(now, tap, app, chunk),
            ProgramCommand::OpenRegion { peer, open, grant, lane } => {
                let result = engine.open_region(tap, app, LaneAt { peer, leased: lane }, grant);
                self.tell_of_regions(at, RegionInput::Opened { open, result });
            }
            ProgramCommand::CloseRegion { handle } => engine.close_region(app, handle),
            ProgramCommand::DetachRegion { number } => engine.detach_local_region(app, number),
        }
    }
}
