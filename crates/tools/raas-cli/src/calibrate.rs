//! `raas calibrate`: from where on it is better to register than to copy, and which verb is better at which length, on
//! this machine and device; the result goes into a file that the daemon reads.
//!
//! Owns how samples become thresholds. It must never write a threshold that no sample shows.

mod measure;

use std::path::Path;
use std::time::Duration;

use raasd::{Calibration, DeviceChoice, decide};
use rdmacore::{OpenConfig, RdmaDevice};
use serde_json::json;
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::{Device, Provider};

use crate::cli::CalibrateArgs;
use measure::{Sample, measure};
use terminal::Failure;
use terminal::out;
use terminal::table::{Align, Table};

/// SEND must be so much better than WRITE, since it takes more of the receiver's processor.
const SEND_BETTER: f64 = 0.95;
/// READ may be so much slower than WRITE: it relieves a busy sender.
const READ_WORSE: f64 = 1.25;
/// No length at all.
const NEVER: u32 = u32::MAX;

/// Measures, prints, and writes the file.
pub(crate) fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let (device, samples) = samples(args)?;
    let calibration = thresholds(device, &samples);
    if let Some(file) = &args.output {
        write(file, &calibration)?;
    }
    if args.json {
        return out::line(to_json(&calibration, &samples, args.output.as_deref())).map(drop);
    }
    out::print(to_text(&calibration, &samples, args.output.as_deref())).map(drop)
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::Failed(what.to_string())
}

/// Opens the device twice, as two hosts would have it, and measures between the two.
fn samples(args: &CalibrateArgs) -> Result<(String, Vec<Sample>), Failure> {
    let wanted: DeviceChoice = args.device.parse().map_err(Failure::Usage)?;
    let decision = decide(&wanted, args.listen, &rdmacore::list_devices(), || {
        rdmacore::library_present().map_err(|e| e.to_string())
    });
    let patience = Duration::from_secs(5);
    let samples = match &decision.device {
        DeviceChoice::RdmaCore(name) => {
            let open = OpenConfig { name: name.clone(), address: args.listen };
            let mut device = RdmaDevice::choose(&open).map_err(failed)?;
            let (a, b) = (device.open().map_err(failed)?, device.open().map_err(failed)?);
            on(a, b, args, patience)?
        }
        _ => {
            // Ports of its own: a daemon may serve this address.
            let config =
                || SoftNicConfig { udp_port: 0, progress: Progress::Inline, ..SoftNicConfig::new(args.listen) };
            let (a, b) = (SoftNic::open(config()).map_err(failed)?, SoftNic::open(config()).map_err(failed)?);
            on(a, b, args, patience)?
        }
    };
    Ok((decision.device.to_string(), samples))
}

fn on<P: Provider>(a: P, b: P, args: &CalibrateArgs, patience: Duration) -> Result<Vec<Sample>, Failure> {
    measure(a, b, args.rounds, patience).map_err(failed)
}

fn write(file: &Path, calibration: &Calibration) -> Result<(), Failure> {
    std::fs::write(file, calibration.to_string()).map_err(|e| failed(format!("{}: {e}", file.display())))
}

/// The smallest length from which on `better` holds for all that were measured.
fn from_on(samples: &[Sample], better: impl Fn(&Sample) -> bool) -> u32 {
    samples.iter().rev().take_while(|s| better(s)).last().map_or(NEVER, |s| s.bytes)
}

/// The largest length up to which `better` holds for all that were measured; 0 for none.
fn up_to(samples: &[Sample], better: impl Fn(&Sample) -> bool) -> u32 {
    samples.iter().take_while(|s| better(s)).last().map_or(0, |s| s.bytes)
}

fn thresholds(device: String, samples: &[Sample]) -> Calibration {
    Calibration {
        device,
        choice_send_bytes: up_to(samples, |s| s.send_ns.is_some_and(|send| send < SEND_BETTER * s.write_ns)),
        choice_read_bytes: from_on(samples, |s| s.read_ns <= READ_WORSE * s.write_ns),
        choice_register_bytes: from_on(samples, |s| s.register_ns <= s.copy_ns),
    }
}

fn to_json(c: &Calibration, samples: &[Sample], file: Option<&Path>) -> serde_json::Value {
    let rows: Vec<_> = samples
        .iter()
        .map(|s| {
            json!({
                "bytes": s.bytes, "copy_ns": s.copy_ns, "register_ns": s.register_ns, "send_ns": s.send_ns,
                "write_ns": s.write_ns, "read_ns": s.read_ns,
            })
        })
        .collect();
    json!({
        "schema": "raas.calibrate/1",
        "device": c.device,
        "crossover_bytes": c.choice_register_bytes,
        "choice_send_bytes": c.choice_send_bytes,
        "choice_read_bytes": c.choice_read_bytes,
        "choice_register_bytes": c.choice_register_bytes,
        "file": file,
        "samples": rows,
    })
}

fn to_text(c: &Calibration, samples: &[Sample], file: Option<&Path>) -> String {
    let columns = ["BYTES", "COPY", "REGISTER", "SEND", "WRITE", "READ"].map(|name| (name, Align::Right));
    let mut table = Table::new(&columns);
    let us = |ns: f64| format!("{:.2} us", ns / 1000.0);
    for s in samples {
        let send = s.send_ns.map_or("-".to_owned(), us);
        table.row(vec![s.bytes.to_string(), us(s.copy_ns), us(s.register_ns), send, us(s.write_ns), us(s.read_ns)]);
    }
    let from = |bytes: u32| if bytes == NEVER { "never".to_owned() } else { format!("from {bytes} bytes on") };
    let send = match c.choice_send_bytes {
        0 => "never".to_owned(),
        bytes => format!("up to {bytes} bytes"),
    };
    let told = match file {
        Some(file) => {
            format!("written to {0}: set `calibration = \"{0}\"` in the daemon's configuration", file.display())
        }
        None => "not written: --output FILE writes a file for the daemon".to_owned(),
    };
    format!(
        "device {}\n{}\nregister instead of copying: {}\nSEND instead of WRITE: {send}\nREAD by the receiver, where the \
         sender is busy: {}\n{told}\n",
        c.device,
        table.render(),
        from(c.choice_register_bytes),
        from(c.choice_read_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: u32, copy: f64, register: f64, send: Option<f64>, read: f64) -> Sample {
        Sample { bytes, copy_ns: copy, register_ns: register, send_ns: send, write_ns: 100.0, read_ns: read }
    }

    #[test]
    fn thresholds_are_where_one_becomes_better_and_stays_so() {
        let samples = [
            sample(64, 5.0, 90.0, Some(90.0), 300.0),
            sample(4096, 95.0, 90.0, Some(94.0), 120.0),
            sample(8192, 85.0, 90.0, Some(96.0), 130.0),
            sample(16_384, 90.0, 90.0, None, 125.0),
            sample(65_536, 500.0, 90.0, None, 110.0),
        ];
        let c = thresholds("d".into(), &samples);
        assert_eq!((c.choice_send_bytes, c.choice_read_bytes, c.choice_register_bytes), (4096, 16_384, 16_384));
        let never = [sample(64, 1.0, 2.0, Some(100.0), 126.0), sample(128, 1.0, 2.0, None, 126.0)];
        let c = thresholds("d".into(), &never);
        assert_eq!((c.choice_send_bytes, c.choice_read_bytes, c.choice_register_bytes), (0, NEVER, NEVER));
        let text = to_text(&c, &never, None);
        assert!(text.contains("instead of copying: never") && text.contains("not written"), "{text}");
    }

    #[test]
    fn the_keys_are_the_ones_that_bind() {
        let samples = [sample(64, 5.0, 90.0, None, 300.0)];
        let value = to_json(&thresholds("softnic".into(), &samples), &samples, Some(Path::new("/x")));
        assert_eq!(value["schema"], "raas.calibrate/1");
        assert!(value["crossover_bytes"].is_u64() && value["samples"][0]["copy_ns"].is_f64(), "{value}");
    }

    #[test]
    fn this_machine_is_measured_and_the_daemon_reads_the_result() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("calibration.toml");
        let args = CalibrateArgs {
            device: "softnic".into(),
            listen: "127.0.0.1".parse().unwrap(),
            output: Some(file.clone()),
            rounds: 3,
            json: false,
        };
        let (device, samples) = samples(&args).unwrap();
        assert!(samples.iter().all(|s| s.copy_ns > 0.0 && s.register_ns > 0.0 && s.write_ns > 0.0 && s.read_ns > 0.0));
        assert!(samples.first().is_some_and(|s| s.send_ns.is_some()));
        let calibration = thresholds(device, &samples);
        write(&file, &calibration).unwrap();
        assert_eq!(Calibration::load(&file).unwrap(), calibration);
    }
}
