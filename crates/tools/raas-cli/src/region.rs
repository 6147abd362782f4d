//! `raas region`: regions from a shell.
//!
//! Owns what of a region is printed. It must never print a key but that of a region which it has made.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::Path;

use control::RegionRow;
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};
use serde_json::{Value, json};
use terminal::table::{self, Align, Table};
use terminal::{Failure, out};
use transport::session_failure;

use crate::cli::{
    KeyArgs, RegionCommand, RegionCreateArgs, RegionLsArgs, RegionOpenArgs, RegionRevokeArgs, SocketArgs,
};

/// What sessions are called.
const NAME: &str = "raas region";
const SCHEMA: &str = "raas.region/1";
/// The only domain in which atomics of a region are one step with each other.
const DOMAIN: &str = "cpu";

/// Does what was asked for.
pub(crate) fn run(command: &RegionCommand) -> Result<(), Failure> {
    match command {
        RegionCommand::Create(args) => create(args),
        RegionCommand::Open(args) => open(args),
        RegionCommand::Ls(args) => ls(args),
        RegionCommand::Revoke(args) => revoke(args),
    }
}

fn create(args: &RegionCreateArgs) -> Result<(), Failure> {
    let access: RegionAccess = args.access.parse().map_err(|e| Failure::Usage(format!("--access: {e}")))?;
    let mut options = RegionOptions::new()
        .access(access)
        .huge_pages(args.huge_pages)
        .other_users(args.other_users)
        .single_writer(args.single_writer)
        // This program ends at once.
        .outlives(true);
    if let Some(key) = given_key(&args.key)? {
        options = options.key(key);
    }
    let session = attach(&args.socket, NAME)?;
    let region = options.create(&session, &args.name, args.bytes).map_err(failure)?;
    let key = region.key().to_string();
    if args.json {
        let rows = described(args.socket.path(), &region)?;
        return out::line(json!({ "schema": SCHEMA, "regions": rows, "key": key })).map(drop);
    }
    out::line(format!("region `{}` of {} bytes; it stays until it is revoked\nkey {key}", args.name, args.bytes))
        .map(drop)
}

fn open(args: &RegionOpenArgs) -> Result<(), Failure> {
    let key = wanted_key(&args.key)?;
    let host = args.host.as_deref().map_or(Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), host)?;
    let session = attach(&args.socket, NAME)?;
    let access = if args.add.is_some() { RegionAccess::ATOMIC } else { RegionAccess::READ };
    let region = Region::open_for(&session, host, &args.name, key, access).map_err(failure)?;
    let rows = if args.json { described(args.socket.path(), &region)? } else { Vec::new() };
    let mut value = json!({ "schema": SCHEMA, "regions": rows, "offset": args.offset });
    let found = match args.add {
        Some(add) => {
            let before = region.fetch_add(args.offset, add).map_err(failure)?;
            value["before"] = json!(before);
            format!("{before}")
        }
        None => {
            let rest = region.bytes().saturating_sub(args.offset);
            let len = rest.min(u64::from(args.read));
            // Behind the end the region says what is wrong.
            let len = if rest == 0 { args.read as usize } else { usize::try_from(len).unwrap_or(usize::MAX) };
            let mut bytes = vec![0; len];
            region.read(args.offset, &mut bytes).map_err(failure)?;
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            value["data"] = json!(hex);
            hex
        }
    };
    if args.json { out::line(value).map(drop) } else { out::line(found).map(drop) }
}

fn ls(args: &RegionLsArgs) -> Result<(), Failure> {
    let rows = raas::inspect::regions(args.socket.path()).map_err(session_failure)?;
    if args.json {
        let regions: Vec<Value> = rows.iter().map(row_to_json).collect();
        return out::line(json!({ "schema": SCHEMA, "regions": regions })).map(drop);
    }
    out::print(rows_to_text(&rows)).map(drop)
}

/// The row of a region that is open. Of one that this host's daemon does not list (another host's, or one that this user
/// may not see) what the handle knows.
fn described(socket: Option<&Path>, region: &Region) -> Result<Vec<Value>, Failure> {
    let rows = raas::inspect::regions(socket).map_err(session_failure)?;
    let of_handle = || {
        json!({
            "name": region.name(),
            "bytes": region.bytes(),
            "epoch": region.epoch(),
            "owner_pid": null,
            "access": region.access().to_string(),
            "domain": DOMAIN,
        })
    };
    let listed = rows.iter().find(|row| row.region == region.number() && row.name == region.name());
    Ok(vec![listed.map_or_else(of_handle, row_to_json)])
}

/// A region as `raas region ls` and `raas stat` show it.
pub(crate) fn row_to_json(row: &RegionRow) -> Value {
    json!({
        "name": row.name,
        "bytes": row.bytes,
        "epoch": row.epoch,
        "owner_pid": row.owner_pid,
        "uid": row.uid,
        "access": row.access.to_string(),
        "domain": DOMAIN,
        "opens": row.opens,
        "remote_opens": row.remote_opens,
        "huge_pages": row.huge_pages,
        "outlives": row.outlives,
        "other_users": row.other_users,
        "single_writer": row.single_writer,
        "term": row.term,
        "writer": row.writer,
    })
}

/// A table of regions, for both.
pub(crate) fn rows_to_text(rows: &[RegionRow]) -> String {
    let mut t = Table::new(&[
        ("NAME", Align::Left),
        ("BYTES", Align::Right),
        ("EPOCH", Align::Right),
        ("ACCESS", Align::Left),
        ("OPEN", Align::Right),
        ("REMOTE", Align::Right),
        ("UID", Align::Right),
        ("OWNER", Align::Right),
        ("WRITER", Align::Left),
        ("DOMAIN", Align::Left),
    ])
    .spare(&["DOMAIN", "REMOTE", "UID"]);
    for row in rows {
        t.row(vec![
            row.name.clone(),
            table::grouped(row.bytes),
            row.epoch.to_string(),
            row.access.to_string(),
            row.opens.to_string(),
            row.remote_opens.to_string(),
            row.uid.to_string(),
            row.owner_pid.map_or("-".to_owned(), |pid| pid.to_string()),
            writer_of(row),
            DOMAIN.to_owned(),
        ]);
    }
    t.render()
}

/// Who may write a region beside its owner.
fn writer_of(row: &RegionRow) -> String {
    match &row.writer {
        Some(writer) => format!("{writer}, term {}", row.term),
        None if row.single_writer => format!("nobody, term {}", row.term),
        None => "-".to_owned(),
    }
}

fn revoke(args: &RegionRevokeArgs) -> Result<(), Failure> {
    let key = wanted_key(&args.key)?;
    let new_key = args.new_key_file.as_deref().map(key_of_file).transpose()?;
    let session = attach(&args.socket, NAME)?;
    let epoch = Region::revoke_by_name(&session, &args.name, key, new_key).map_err(failure)?;
    if args.json {
        return out::line(json!({ "schema": SCHEMA, "regions": [{ "name": args.name, "epoch": epoch }] })).map(drop);
    }
    out::line(format!("region `{}` was revoked; its epoch is {epoch}", args.name)).map(drop)
}

// ---- arguments

/// A session with this host's daemon, by the name of a command.
pub(crate) fn attach(socket: &SocketArgs, name: &str) -> Result<Session, Failure> {
    let builder = Session::builder().name(name);
    match socket.path() {
        Some(path) => builder.socket(path).connect(),
        None => builder.connect(),
    }
    .map_err(session_failure)
}

pub(crate) fn host(name: &str) -> Result<IpAddr, Failure> {
    let unusable = |why: String| Failure::Usage(format!("`{name}`: {why}; name the region's host or address"));
    let mut found = (name, 0).to_socket_addrs().map_err(|e| unusable(e.to_string()))?;
    found.next().map(|at| at.ip()).ok_or_else(|| unusable("the name has no address".into()))
}

pub(crate) fn given_key(args: &KeyArgs) -> Result<Option<RegionKey>, Failure> {
    match (&args.key, &args.key_file) {
        (Some(hex), _) => hex.parse().map(Some).map_err(|e| Failure::Usage(format!("--key: {e}"))),
        (None, Some(file)) => key_of_file(file).map(Some),
        (None, None) => Ok(None),
    }
}

fn wanted_key(args: &KeyArgs) -> Result<RegionKey, Failure> {
    given_key(args)?.ok_or_else(|| Failure::Usage("the region's key is wanted: --key-file FILE, or --key HEX".into()))
}

fn key_of_file(path: &Path) -> Result<RegionKey, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))?;
    text.parse().map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
}

/// What the command's end says.
pub(crate) fn failure(e: RegionError) -> Failure {
    match e {
        RegionError::Session(e) => session_failure(e),
        RegionError::Refused { why: RegionRefusal::BadName { .. } | RegionRefusal::BadSize { .. }, .. }
        | RegionError::OutOfBounds { .. }
        | RegionError::Misaligned { .. } => Failure::Usage(e.to_string()),
        RegionError::Refused { why: RegionRefusal::NoMemory { .. } | RegionRefusal::Busy, .. } => {
            Failure::Failed(e.to_string())
        }
        RegionError::Refused { .. } | RegionError::NoAccess { .. } => Failure::Refused(e.to_string()),
        e => Failure::Failed(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_row_are_the_ones_that_bind() {
        let row = RegionRow {
            name: "counters".into(),
            region: 3,
            bytes: 4096,
            epoch: 2,
            owner_pid: None,
            uid: 7,
            access: RegionAccess::READ | RegionAccess::ATOMIC,
            opens: 1,
            remote_opens: 4,
            huge_pages: false,
            outlives: true,
            other_users: false,
            single_writer: true,
            term: 5,
            writer: Some("10.0.0.2".into()),
        };
        assert_eq!(
            row_to_json(&row),
            json!({
                "name": "counters", "bytes": 4096, "epoch": 2, "owner_pid": null, "uid": 7, "access": "read,atomic",
                "domain": "cpu", "opens": 1, "remote_opens": 4, "huge_pages": false, "outlives": true,
                "other_users": false, "single_writer": true, "term": 5, "writer": "10.0.0.2",
            })
        );
        let text = rows_to_text(&[row]);
        assert!(text.contains("counters") && text.contains("4,096") && text.lines().count() == 2, "{text}");
    }
}
