//! A driver of the machine whose memory and engines answer at once.

use super::*;

/// Carries actions out until there are none.
pub(super) fn settle(daemon: &mut Machine, draw: &mut dyn FnMut(u64) -> u64) -> Result<(), String> {
    for _ in 0..2000 {
        let Some(action) = daemon.poll_action(Time(1)) else { return Ok(()) };
        match action {
            Action::Memory(MemoryCommand::Make { region, .. }) => daemon.on_made(Time(1), region, Ok(())),
            Action::Program { client, command: ProgramCommand::OpenRegion { open, .. }, .. } => {
                assert!(daemon.is_attached(client));
                daemon.on_region_opened(open, if draw(2) == 0 { Ok(draw(9) as u32) } else { Err(Reason::LocalLimit) });
            }
            Action::Program { client, .. } => assert!(daemon.is_attached(client)),
            Action::Refused { client, .. } => leaves(daemon, client.0),
            Action::Region(RegionCommand::Stop { peer, region, epoch }) => {
                daemon.on_region_stopped(peer, region, epoch);
            }
            Action::Region(RegionCommand::Deregister { region, .. }) => daemon.on_deregistered(region),
            Action::Share { client, reply, .. } if draw(8) == 0 => {
                daemon.on_not_shared(client, reply, "no descriptor".into());
            }
            _ => {}
        }
    }
    Err("it does not come to rest".into())
}
