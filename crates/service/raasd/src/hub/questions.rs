//! Questions: which programs may ask, and the page that answers.
//!
//! Owns the way of a question from its request to the answer in the program's queue. It must never work at more than
//! one part of a page between two other things.

use std::time::Duration;

use control::{Cursor, InspectAnswer, InspectQuery, Reply};
use engine::{AppId, Viewer};
use plane::{ClientId, ConnectionRows};
use tokio::time::Instant;

use super::Hub;
use crate::client_socket::Outgoing;
use crate::command::{Command, EnginePart, EngineView};
use crate::inspect::{self, DaemonStat, LOOKS_PER_PAGE, PAGE_ENOUGH, Part, SeenHere, TURNS_PER_PAGE};
use crate::questions::{Gathered, Question, QuestionPlace};

/// The daemon's descriptors are counted at most once in this time: with many it takes milliseconds.
const FDS_SAMPLE: Duration = Duration::from_secs(1);
/// What a program that asks too early did.
const SECOND_QUESTION: &str = "a question before the answer to the one before was taken from the socket";

impl Hub {
    /// A program asks for a page. An error is what it did wrong.
    pub(super) fn on_question(
        &mut self,
        id: ClientId,
        request: u64,
        query: InspectQuery,
        from: Cursor,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let uid = client.who.uid;
        let place = client.question.try_take().ok_or(SECOND_QUESTION)?;
        let viewer = if self.daemon.is_operator(uid) { Viewer::All } else { Viewer::User(uid) };
        self.questions.push(Question {
            client: id,
            uid,
            viewer,
            request,
            query,
            from,
            page: Gathered::default(),
            place,
            totals: None,
        });
        Ok(())
    }

    /// A program asks for hosts by name. An error is what it did wrong.
    pub(super) fn on_lookup(&mut self, id: ClientId, request: u64, name: &str) -> Result<(), String> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let place = client.question.try_take().ok_or(SECOND_QUESTION)?;
        let members = &self.link_context.members;
        let answer = InspectAnswer::Found { addresses: members.find(name), directories: members.directories() };
        self.reply(id, Reply::Inspected { request, answer, next: None }, place);
        Ok(())
    }

    // ---- answers

    /// Works at the question whose turn it is.
    pub(super) fn answer_next_question(&mut self) {
        let Some(question) = self.questions.next() else { return };
        let (viewer, before) = (question.viewer, question.page.bytes);
        match inspect::part(question.query, question.from, self.engines.count()) {
            Part::Engine(engine, part) => self.ask_engine(engine, part, question),
            Part::Pairs(at) => {
                let (mut rows, next) = self.daemon.pairs().rows(|uid| viewer.sees(uid), at, LOOKS_PER_PAGE);
                self.daemon.own_ends().put_into(rows.iter_mut().map(|(_, row)| row));
                self.answer_rows(question, (rows, next));
            }
            Part::Tcp(at) => {
                self.answer_rows(question, self.daemon.fallbacks().rows(|uid| viewer.sees(uid), at, LOOKS_PER_PAGE))
            }
            Part::Regions(at) => {
                let uid = (viewer != Viewer::All).then_some(question.uid);
                let (rows, next) = self.daemon.directory().rows(uid, at, LOOKS_PER_PAGE as usize);
                let (rows, next) = inspect::cut(rows, next, before);
                self.answer_page(question, InspectAnswer::Regions(rows), next);
            }
            Part::Tenants(at) => {
                let rows = self.tenant_rows((viewer != Viewer::All).then_some(question.uid));
                let from = rows.into_iter().enumerate().map(|(place, row)| (place as u64, row));
                let (rows, next) = inspect::cut(from.filter(|(place, _)| *place >= at).collect(), None, before);
                self.answer_page(question, InspectAnswer::Tenants(rows), next);
            }
            Part::Members(at) => {
                let (rows, next) = self.link_context.members.page(at, LOOKS_PER_PAGE as usize);
                let (rows, next) = inspect::cut(rows, next, before);
                self.answer_page(question, InspectAnswer::Members(rows), next);
            }
            Part::Directories => {
                let rows = self.link_context.members.directories();
                self.answer_page(question, InspectAnswer::Directories(rows), None);
            }
            Part::None => {
                let answer = inspect::nothing(question.query);
                self.answer(question, answer, None);
            }
        }
    }

    fn ask_engine(&mut self, engine: u32, part: EnginePart, question: Question) {
        self.asked += 1;
        self.engines.queue(engine, Command::Inspect { number: self.asked, viewer: question.viewer, part });
        self.questions.give_to_engine(question);
    }

    fn answer_rows(&mut self, question: Question, (rows, next): ConnectionRows) {
        let (rows, next) = inspect::cut(rows, next, question.page.bytes);
        self.answer_page(question, InspectAnswer::Connections(rows), next);
    }

    /// An engine's page.
    pub(super) fn on_inspected(&mut self, engine: u32, number: u64, view: EngineView) {
        debug_assert_eq!(number, self.asked, "the engines have one question at a time");
        let Some(mut question) = self.questions.take_from_engine() else { return };
        let before = question.page.bytes;
        match view {
            EngineView::Connections(page) => {
                let (rows, next) = inspect::cut_page(page, before);
                let rows = self.with_directs(rows);
                self.answer_page(question, InspectAnswer::Connections(rows), next);
            }
            EngineView::Datagrams(page) => {
                let (rows, next) = inspect::cut_page(page, before);
                self.answer_page(question, InspectAnswer::Datagrams(rows), next);
            }
            EngineView::Trace((rows, next)) => {
                let (rows, next) = inspect::cut(rows, next, before);
                self.answer_page(question, InspectAnswer::Trace(rows), next);
            }
            EngineView::Totals(totals) => {
                // Those of all engines, one after the other.
                let totals = match question.totals.take() {
                    None => *totals,
                    Some(others) => inspect::sum(others, *totals),
                };
                if engine + 1 < self.engines.count() {
                    question.totals = Some(totals);
                    return self.ask_engine(engine + 1, EnginePart::Totals, question);
                }
                let stat = inspect::stat(totals, &self.daemon_stat(), question.viewer);
                self.answer_page(question, InspectAnswer::Stat(Box::new(stat)), None);
            }
            EngineView::Lanes(page) => {
                let (admission, peers) = (self.daemon.admission(), self.daemon.peers());
                let own = |uid, peer| admission.connections_with(uid, peer, engine);
                let path = |peer| peers.path_to(peer).map(|(path, why)| (path.to_string(), why));
                let page = inspect::lanes(page, question.viewer, own, path);
                let (lanes, next) = inspect::cut_page(page, before);
                self.answer_page(question, InspectAnswer::StatRows { lanes, apps: Vec::new() }, next);
            }
            EngineView::Bytes(next) => {
                let answer = inspect::nothing(InspectQuery::Stat);
                self.answer_page(question, answer, next.map(u64::from));
            }
            EngineView::Apps(page) => {
                let page = inspect::apps(page, |app| self.seen_here(engine, app));
                let (apps, next) = inspect::cut_page(page, before);
                self.answer_page(question, InspectAnswer::StatRows { lanes: Vec::new(), apps }, next);
            }
        }
    }

    /// A part of the table that was asked for; behind its last one comes the next table. What follows comes with the same
    /// answer as far as a page goes: `raas stat` would else wait at each of its parts until what others ask for by then
    /// is done.
    fn answer_page(&mut self, mut question: Question, part: InspectAnswer, next: Option<u64>) {
        let (from, engines) = (question.from, self.engines.count());
        let next = next.map(|at| Cursor { at, ..from });
        let next = next.or_else(|| inspect::following(question.query, from.table, engines));
        let Gathered { answer: page, bytes, turns } = std::mem::take(&mut question.page);
        let bytes = bytes + inspect::encoded_bytes(&part);
        let page = match inspect::join(page, part) {
            Ok(page) => page,
            // The part is of another kind, and is made anew for the next page.
            Err(page) => return self.answer(question, page, Some(from)),
        };
        let turns = turns + 1;
        let is_enough = bytes >= PAGE_ENOUGH || turns >= TURNS_PER_PAGE || !self.clients.contains_key(&question.client);
        match next {
            Some(next) if !is_enough && next != from => {
                question.from = next;
                question.page = Gathered { answer: Some(page), bytes, turns };
                self.questions.put_back(question);
            }
            next => self.answer(question, page, next),
        }
    }

    fn answer(&mut self, question: Question, answer: InspectAnswer, next: Option<Cursor>) {
        let Question { client: id, request, place, .. } = question;
        self.reply(id, Reply::Inspected { request, answer, next }, place);
    }

    fn reply(&mut self, id: ClientId, reply: Reply, place: QuestionPlace) {
        let Some(client) = self.clients.get(&id) else { return };
        if let Err(error) = client.out.send(Outgoing::answer(&reply, place)) {
            self.on_unsent(id, error);
        }
    }

    // ---- what the control plane knows

    /// What is known of the program that an engine names; its same-host connections are in the rows of engine 0.
    fn seen_here(&self, engine: u32, app: AppId) -> SeenHere {
        let Some(client) = self.names.program(engine, app) else { return SeenHere::default() };
        let (connections, bytes) = match engine {
            0 => (self.daemon.pairs().connections_of(client), self.daemon.pairs().bytes_of(client)),
            _ => (0, (0, 0)),
        };
        let tenant = self.daemon.admission().tenant_of(client).map(|(name, _)| name.to_string()).unwrap_or_default();
        SeenHere { session: client.0, connections, bytes, tenant }
    }

    fn daemon_stat(&mut self) -> DaemonStat {
        let now = Instant::now();
        let counted = self.fds.filter(|(at, _)| now.saturating_duration_since(*at) < FDS_SAMPLE);
        let (_, fds) = *self.fds.insert(counted.unwrap_or_else(|| (now, inspect::open_descriptors())));
        DaemonStat {
            device_reason: self.link_context.config.device_reason.clone(),
            calls_filtered: self.link_context.config.confinement.calls_filtered,
            landlock_abi: self.link_context.config.confinement.landlock_abi,
            uptime_seconds: self.now().as_nanos() / 1_000_000_000,
            pairs: self.daemon.pairs().count(),
            links: u64::try_from(self.links.len()).unwrap_or(u64::MAX),
            path_changes: self.daemon.peers().path_changes(),
            admission: self.daemon.admission().counters(),
            turn_max_us: self.turns.longest_us(),
            directs: self.daemon.directs().counters(),
            fds,
            memory: self.memory.taken(),
        }
    }
}
