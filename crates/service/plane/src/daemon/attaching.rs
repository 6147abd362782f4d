//! Programs that come: who is taken in, and what the engines are told and say.
//!
//! Owns how far each is, and what was counted for an engine of what a program brings along. An engine that does not take a
//! program in does not end that, so whatever becomes of the program it is given back here.

use control::Reason;

use super::program::{Adopted, Attaching, Program, Stage};
use super::{Action, Daemon};
use crate::{ClientId, Party, Policy, ProgramFacts, ProgramRights};

/// A program at the control socket.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// Who it is.
    pub party: Party,
    /// By what the policy knows its tenant.
    pub facts: ProgramFacts,
    /// What names its process, if that is known.
    pub process: Option<String>,
    /// It brings the session along that it has from a daemon before this one.
    pub returns: bool,
}

impl<F, S> Daemon<F, S> {
    /// A program wants to attach. An error: it may not.
    pub fn handle_attach(&mut self, newcomer: Newcomer) -> Result<(), Reason> {
        let Newcomer { party: Party { client, pid, uid }, facts, process, returns } = newcomer;
        self.admission.attach(client, facts)?;
        let stage = if returns { Stage::Returning(Box::default()) } else { self.attaching(client, false) };
        self.programs.insert(client, Program { pid, uid, process, stage });
        if !returns {
            self.actions.push_back(Action::Attach { client, rights: self.rights_of(client), brought: None });
        }
        Ok(())
    }

    pub(super) fn attaching(&self, client: ClientId, returns: bool) -> Stage {
        let unanswered = if returns { 2 * self.engines } else { self.engines };
        Stage::Attaching(Attaching { unanswered, returns, refused: None, rights: self.rights_of(client) })
    }

    /// The driver has no memory or no descriptors for [`Action::Attach`], and asked no engine.
    pub fn on_not_asked(&mut self, client: ClientId, why: String) {
        let Some(Program { stage: Stage::Attaching(attaching), .. }) = self.programs.get(&client) else { return };
        let reason = if attaching.returns { Reason::DaemonLost } else { Reason::LocalLimit };
        self.refuse_program(client, reason, why);
    }

    /// No engine was asked to take a program in, and none will be.
    pub(super) fn refuse_program(&mut self, client: ClientId, reason: Reason, words: String) {
        self.forget_unasked(client);
        self.programs.remove(&client);
        self.actions.push_back(Action::Refused { client, reason, words });
    }

    /// Nothing comes of what a program brought along: no engine was asked.
    pub(super) fn forget_unasked(&mut self, client: ClientId) {
        for engine in 0..self.engines {
            self.forget_adopted(client, engine);
        }
        self.admission.on_not_attached(client);
    }

    /// An engine does not take what was counted for it.
    fn forget_adopted(&mut self, client: ClientId, engine: u32) {
        let Adopted { connections, sockets } = self.adopted.remove(&(client, engine)).unwrap_or_default();
        connections.into_iter().for_each(|over| self.admission.on_connection_over(client, over));
        (0..sockets).for_each(|_| self.admission.on_socket_over(client));
    }

    /// An engine has taken a program in, or why not. False: the program is gone, and an engine that took it is to give it
    /// up.
    pub fn on_taken(&mut self, client: ClientId, engine: u32, result: Result<(), Reason>) -> bool {
        match result {
            // What comes of it the engine says.
            Ok(()) => _ = self.adopted.remove(&(client, engine)),
            Err(_) => {
                self.forget_adopted(client, engine);
                self.admission.on_program_gone(client, engine);
            }
        }
        let Some(Program { stage: Stage::Attaching(attaching), .. }) = self.programs.get_mut(&client) else {
            return false;
        };
        attaching.refused = attaching.refused.or(result.err());
        let answers = if attaching.returns && result.is_err() { 2 } else { 1 };
        self.on_answers(client, answers);
        true
    }

    /// An engine has taken back what a program brought along.
    pub fn on_taken_back(&mut self, client: ClientId) {
        self.on_answers(client, 1);
    }

    fn on_answers(&mut self, client: ClientId, count: u32) {
        let rights = self.rights_of(client);
        let Some(program) = self.programs.get_mut(&client) else { return };
        let Stage::Attaching(attaching) = &mut program.stage else { return };
        attaching.unanswered = attaching.unanswered.saturating_sub(count);
        if attaching.unanswered > 0 {
            return;
        }
        if let Some(reason) = attaching.refused {
            let words = "the engines take no more programs".into();
            return self.actions.push_back(Action::Refused { client, reason, words });
        }
        // The policy may have changed meanwhile.
        let is_told = attaching.rights == rights;
        program.stage = Stage::Attached;
        if !is_told {
            self.actions.push_back(Action::Rights { client, rights });
        }
        self.actions.push_back(Action::Welcome { client });
    }

    pub(super) fn rights_of(&self, client: ClientId) -> ProgramRights {
        let networks = self.admission.tenant_of(client).and_then(|(_, rights)| rights.connect.clone());
        ProgramRights { networks, tenant: self.admission.tenant_place(client) }
    }

    /// Another policy is in force. It takes nothing away from programs that they have.
    pub fn set_policy(&mut self, policy: Policy) {
        self.admission.set_policy(policy);
        // Those that engines are asked about are told when they are in.
        let attached = self.programs.iter().filter(|(_, program)| matches!(program.stage, Stage::Attached));
        for client in attached.map(|(client, _)| *client).collect::<Vec<_>>() {
            self.actions.push_back(Action::Rights { client, rights: self.rights_of(client) });
        }
    }
}
