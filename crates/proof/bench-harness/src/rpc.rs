//! Bench `rpc`: calls of 32 bytes on one host and between two over each transport of `raas-rpc`, beside gRPC over kernel
//! TCP. Owns the bars; the measuring is in bench/src/rpcbench.

use super::Args;
use super::remus::measure;
use super::report::Findings;
use super::stats::{Bar, Better, Kind, Row, Series};
use anyhow::{Context, Result};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::time::Duration;

/// Of one round of all cases, without the time that they measure: above all clients that connect.
const ROUND_LIMIT: Duration = Duration::from_secs(180);
/// Sides of all cases of a round, with the time in which their load gets going.
const SIDES: u32 = 40;
const SECONDS: f64 = 0.5;
/// A call of one client takes at most this part of what gRPC takes.
const LATENCY_PART: f64 = 1.0 / 3.0;
/// The transport that is made for many clients, and what it keeps of its throughput with fewer.
const SCALES: &str = "scale";
const KEPT: f64 = 0.9;
const MANY: u64 = 400;
const FEW: u64 = 40;

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let measured = Duration::from_secs_f64(args.seconds(SECONDS)) * SIDES;
    findings(&measure(repo, args, ("rpcbench", SECONDS), (ROUND_LIMIT + measured) * args.rounds())?)
}

fn values(side: &Value) -> Vec<f64> {
    side["values"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn name(side: &Value) -> String {
    side["side"].as_str().unwrap_or_default().to_owned()
}

/// A row for each transport of each case beside gRPC, and for each one's many clients beside its few.
fn findings(file: &Value) -> Result<Findings> {
    let mut findings = Findings {
        rounds: u32::try_from(file["rounds"].as_u64().unwrap_or_default())?,
        setting: json!({
            "hosts": "two daemons in one process on loopback", "device": "softnic", "bytes": 32,
            "rival": "tonic over kernel TCP on loopback",
        }),
        ..Findings::default()
    };
    let cases = file["cases"].as_array().context("the results have no cases")?;
    for case in cases {
        let clients = case["clients"].as_u64().context("a case without a number of clients")?;
        let sides = case["sides"].as_array().context("a case without sides")?;
        let (grpc, transports) = sides.split_last().context("a case without sides")?;
        for transport in transports {
            let better = if clients == 1 { Better::Lower } else { Better::Higher };
            let series = Series {
                case: format!("{}, {}", case["case"].as_str().unwrap_or_default(), name(transport)),
                unit: case["unit"].as_str().unwrap_or_default().to_owned(),
                better,
                ours: values(transport),
                rival: name(grpc),
                rival_values: values(grpc),
            };
            let bar = (clients == 1).then_some((Bar::RatioAtMost(LATENCY_PART), Kind::Must));
            findings.rows.push(Row { series, bar });
        }
    }
    let with = |clients: u64| cases.iter().find(|case| case["clients"].as_u64() == Some(clients));
    let (Some(many), Some(few)) = (with(MANY), with(FEW)) else { return Ok(findings) };
    let pairs = many["sides"].as_array().into_iter().flatten().zip(few["sides"].as_array().into_iter().flatten());
    for (many, few) in pairs {
        let series = Series {
            case: format!("{MANY} clients beside {FEW}, {}", name(many)),
            unit: "calls/s".to_owned(),
            better: Better::Higher,
            ours: values(many),
            rival: format!("{FEW} clients"),
            rival_values: values(few),
        };
        let bar = (name(many) == SCALES).then_some((Bar::RatioAtLeast(KEPT), Kind::Must));
        findings.rows.push(Row { series, bar });
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::super::stats::Verdict;
    use super::*;

    #[test]
    fn each_transport_must_be_quick_and_one_must_scale() -> Result<()> {
        let case = |clients: u64, of: [f64; 3]| {
            let side = |name: &str, value: f64| json!({ "side": name, "values": vec![value; 9] });
            let sides = [side("herd", of[0]), side("scale", of[1]), side("gRPC", of[2])];
            json!({ "case": format!("{clients} clients"), "clients": clients, "unit": "us", "sides": sides })
        };
        let cases = [case(1, [30.0, 40.0, 100.0]), case(40, [9.0, 10.0, 5.0]), case(400, [3.0, 9.5, 4.0])];
        let found = findings(&json!({ "rounds": 9, "cases": cases }))?;
        let verdicts: Vec<_> = found.rows.iter().map(Row::verdict).collect();
        let latency = [Some(Verdict::Met), Some(Verdict::Missed)];
        assert_eq!(verdicts[..2], latency);
        assert_eq!(verdicts[2..], [None, None, None, None, None, Some(Verdict::Met), None]);
        Ok(())
    }
}
