//! A program starts itself again after its file is gone, through a shell as the stages do.

use std::process::Command;

const STEP: &str = "HARNESS_ITSELF_STEP";

#[test]
fn a_program_whose_file_was_removed_starts_itself_again() {
    match std::env::var(STEP).as_deref() {
        Err(_) => {
            let place = std::env::temp_dir().join(format!("harness-itself-{}", std::process::id()));
            std::fs::copy(std::env::current_exe().unwrap(), &place).unwrap();
            let status = Command::new(&place).env(STEP, "remove").status();
            // The copy removes its file; this is for the case that it fails before.
            let _ = std::fs::remove_file(&place);
            assert!(status.unwrap().success());
        }
        Ok("remove") => {
            let name = std::env::current_exe().unwrap();
            std::fs::remove_file(&name).unwrap();
            let itself = harness::itself::path().unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$@\"", "sh"]).arg(itself).env(STEP, "again");
            assert!(shell.status().unwrap().success());
        }
        Ok(_) => {
            // The name is gone, and yet this runs.
            assert!(!std::env::current_exe().unwrap().exists());
        }
    }
}
