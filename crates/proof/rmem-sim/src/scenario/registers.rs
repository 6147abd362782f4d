//! Stories about the counter, the max-register and the register of several words.

use rmem::{Counter, Error, MaxRegister, On, Ptr, Register};

use super::{Play, Stage};
use crate::history::{History, WordAct};

const COUNTER: u64 = 0;
const GREATEST: u64 = 1;

async fn words_life(stage: Stage, number: usize, history: History<WordAct>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let both: Ptr<[u64; 2]> = if number == 0 {
            let both = client.make(On(1), &[0, 0]).await?;
            stage.name(&client, both).await?;
            both
        } else {
            stage.find(&client).await?
        };
        let greatest = Ptr::new(both.address().plus(1), both.epoch());
        let (counter, greatest) = (Counter::at(both.cast()), MaxRegister::at(greatest));
        for _ in 0..stage.scenario.operations {
            let value = 1 + stage.world.below(50);
            match stage.world.below(4) {
                0 => {
                    let call = history.ask(COUNTER, WordAct::Add(value, None));
                    let found = counter.add(&client, value).await?;
                    history.end(call, WordAct::Add(value, Some(found)));
                }
                1 => {
                    let call = history.ask(COUNTER, WordAct::Read(None));
                    history.end(call, WordAct::Read(Some(counter.get(&client).await?)));
                }
                2 => {
                    let call = history.ask(GREATEST, WordAct::Max(value, None));
                    let found = greatest.write(&client, value).await?;
                    history.end(call, WordAct::Max(value, Some(found)));
                }
                _ => {
                    let call = history.ask(GREATEST, WordAct::Read(None));
                    history.end(call, WordAct::Read(Some(greatest.read(&client).await?)));
                }
            }
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn words_audit(stage: Stage, history: History<WordAct>) {
    let audit = async {
        let client = stage.join(stage.scenario.clients).await?;
        let both: [u64; 2] = {
            let at: Ptr<[u64; 2]> = stage.find(&client).await?;
            let mut client = stage.join(stage.scenario.clients + 1).await?;
            client.load(at).await?
        };
        for (object, found) in both.into_iter().enumerate() {
            let call = history.ask(object as u64, WordAct::Read(None));
            history.end(call, WordAct::Read(Some(found)));
        }
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn words(stage: &Stage) -> Play {
    let history = History::new(&stage.world);
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(words_life(stage.clone(), n, history.clone())) as _);
    let (judged, counted, words) = (history.clone(), history.clone(), history.clone());
    Play {
        lives: lives.collect(),
        audit: Box::pin(words_audit(stage.clone(), history)),
        judge: Box::new(move || judged.judge(&0, WordAct::apply)),
        calls: Box::new(move || counted.ended()),
        words: Some(words),
    }
}

// ---- the register

const BYTES: usize = 40;

async fn read(stage: &Stage, client: &mut super::Mine, register: &Register) -> Result<u64, Error> {
    let bytes = register.read(client).await?;
    let value = bytes.first().copied().unwrap_or(0);
    if !bytes.is_empty() && bytes != [value; BYTES] {
        stage.wrong(format!("a torn value of a register: {bytes:?}"));
    }
    Ok(value.into())
}

async fn register_life(stage: Stage, number: usize, history: History<WordAct>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let register = if number == 0 {
            let register = Register::create(&mut client, BYTES as u64, 8, On(1)).await?;
            stage.name(&client, register.ptr()).await?;
            register
        } else {
            Register::open(&client, stage.find(&client).await?).await?
        };
        let mut writer = if number < 3 { Some(register.writer(&client).await?) } else { None };
        for operation in 0..stage.scenario.operations {
            let value = number as u64 * 80 + operation % 80 + 1;
            match writer.as_mut().filter(|_| stage.world.below(2) == 0) {
                Some(writer) => {
                    let call = history.ask(0, WordAct::Write(value));
                    writer.write(&mut client, &[value as u8; BYTES]).await?;
                    history.end(call, WordAct::Write(value));
                }
                None => {
                    let call = history.ask(0, WordAct::Read(None));
                    let found = read(&stage, &mut client, &register).await?;
                    history.end(call, WordAct::Read(Some(found)));
                }
            }
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn register_audit(stage: Stage, history: History<WordAct>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let register = Register::open(&client, stage.find(&client).await?).await?;
        let call = history.ask(0, WordAct::Read(None));
        let found = read(&stage, &mut client, &register).await?;
        history.end(call, WordAct::Read(Some(found)));
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn register(stage: &Stage) -> Play {
    let history = History::new(&stage.world);
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(register_life(stage.clone(), n, history.clone())) as _);
    let (judged, counted, words) = (history.clone(), history.clone(), history.clone());
    Play {
        lives: lives.collect(),
        audit: Box::pin(register_audit(stage.clone(), history)),
        judge: Box::new(move || judged.judge(&0, WordAct::apply)),
        calls: Box::new(move || counted.ended()),
        words: Some(words),
    }
}
