//! Questions of `raas ss`, `raas stat` and the like that wait for their turn.
//!
//! Owns the order in which they are answered: users take turns, and one question is worked at at a time, so that engine
//! and control plane do at most one page for questions between other work. It must never hold more than one question of
//! a program. The program's `place` shows that one is open, from the question until the socket has taken the answer.

use std::sync::Arc;

use control::{Cursor, InspectAnswer, InspectQuery};
use engine::Viewer;
use plane::ClientId;

use crate::command::EngineStat;
use crate::user_turns::UserTurns;

/// A program has one of these. The holder of a clone holds the program's only question, or the answer to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct QuestionPlace(Arc<()>);

impl QuestionPlace {
    /// A clone for a question; none if there is one already.
    pub(crate) fn try_take(&self) -> Option<Self> {
        (Arc::strong_count(&self.0) == 1).then(|| self.clone())
    }
}

/// The page so far.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) answer: Option<InspectAnswer>,
    /// Of `answer`, encoded.
    pub(crate) bytes: usize,
    /// How often it was this question's turn.
    pub(crate) turns: u32,
}

/// A question for a page. Each of its turns adds a part of one table.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) viewer: Viewer,
    pub(crate) request: u64,
    pub(crate) query: InspectQuery,
    /// Where the next part begins.
    pub(crate) from: Cursor,
    pub(crate) page: Gathered,
    pub(crate) place: QuestionPlace,
    /// Totals of the engines that have answered, where all are asked.
    pub(crate) totals: Option<EngineStat>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    waiting: UserTurns<Question>,
    at_engine: Option<Question>,
}

impl Questions {
    pub(crate) fn push(&mut self, question: Question) {
        self.waiting.push(question.uid, question);
    }

    /// One that is not answered yet. It stays the first of its user, and other users come before it.
    pub(crate) fn put_back(&mut self, question: Question) {
        self.waiting.put_back(question.uid, question);
    }

    /// Whether [`Self::next`] has one.
    pub(crate) fn is_ready(&self) -> bool {
        self.at_engine.is_none() && !self.waiting.is_empty()
    }

    /// The next question, unless the engine has one.
    pub(crate) fn next(&mut self) -> Option<Question> {
        if !self.is_ready() {
            return None;
        }
        self.waiting.next(|_| true).map(|(_, question)| question)
    }

    /// The engine answers this one.
    pub(crate) fn give_to_engine(&mut self, question: Question) {
        self.at_engine = Some(question);
    }

    /// The engine has answered.
    pub(crate) fn take_from_engine(&mut self) -> Option<Question> {
        self.at_engine.take()
    }

    /// The program is gone. What the engine works at stays until it answers.
    pub(crate) fn handle_gone(&mut self, client: ClientId, uid: u32) {
        self.waiting.retain(uid, |question| question.client != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(client: u64, uid: u32) -> Question {
        Question {
            client: ClientId(client),
            uid,
            viewer: Viewer::User(uid),
            request: 0,
            query: InspectQuery::Stat,
            from: Cursor::default(),
            page: Gathered::default(),
            place: QuestionPlace::default(),
            totals: None,
        }
    }

    #[test]
    fn users_take_turns_whatever_number_of_questions_each_has() {
        let mut questions = Questions::default();
        (0..100).for_each(|n| questions.push(question(n, 5)));
        questions.push(question(200, 6));
        questions.push(question(201, 7));
        questions.handle_gone(ClientId(201), 7);
        questions.handle_gone(ClientId(1), 5);
        let order: Vec<_> = (0..5).filter_map(|_| questions.next()).map(|q| (q.uid, q.client.0)).collect();
        assert_eq!(order, [(5, 0), (6, 200), (5, 2), (5, 3), (5, 4)]);
        questions.push(question(202, 6));
        questions.put_back(question(4, 5));
        let order: Vec<_> = (0..3).filter_map(|_| questions.next()).map(|q| q.client.0).collect();
        assert_eq!(order, [4, 202, 5], "one that is not answered yet stays the first of its user");
        (5..100).for_each(|n| questions.handle_gone(ClientId(n), 5));
        assert!(!questions.is_ready() && questions.waiting.is_empty());
    }

    #[test]
    fn the_engine_has_one_at_a_time() {
        let mut questions = Questions::default();
        (0..2).for_each(|n| questions.push(question(n, 5)));
        let first = questions.next().unwrap();
        questions.give_to_engine(first);
        assert!(!questions.is_ready() && questions.next().is_none());
        questions.handle_gone(ClientId(0), 5);
        assert_eq!(questions.take_from_engine().map(|q| q.client), Some(ClientId(0)));
        assert_eq!(questions.next().map(|q| q.client), Some(ClientId(1)));
    }

    #[test]
    fn a_program_has_one_question_until_its_answer_is_dropped() {
        let place = QuestionPlace::default();
        let answer = place.try_take().unwrap();
        assert!(place.try_take().is_none());
        drop(answer);
        assert!(place.try_take().is_some());
    }
}
