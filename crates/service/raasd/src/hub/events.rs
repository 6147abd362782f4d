//! What engines say.

use dispatch::Left;

use super::Hub;
use super::actions::System;
use crate::command::{EngineReport, FromEngine};

impl Hub {
    pub(super) fn on_engine(&mut self, report: EngineReport) {
        let (now, EngineReport { engine, what }) = (self.now(), report);
        let left = match what {
            FromEngine::Report(report) => {
                dispatch::hear(&mut self.daemon, &mut self.names, (now, engine), report, &mut System)
            }
            FromEngine::Inspected { number, view } => return self.on_inspected(engine, number, view),
            FromEngine::WakeHangup { app } => {
                return self.names.program(engine, app).into_iter().for_each(|client| self.on_wake_hangup(client));
            }
        };
        match left {
            None => {}
            Some(Left::Command(command)) => self.command(engine, command),
            Some(Left::Rings { client, app, size, rings }) => self.on_chunks_wanted((engine, client, app), size, rings),
            Some(Left::Fault { client, detail }) => self.throw_out(client, &detail),
        }
    }
}
