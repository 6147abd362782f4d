//! `raas device`: which devices this machine has, and which device, port and GID an address would get, with the reason.

use std::net::IpAddr;

use raasd::{Decision, DeviceChoice};
use rdmacore::{Choice, DeviceInfo, GidInfo, GidType, PortInfo, SelectError};
use serde_json::{Value, json};

use terminal::Failure;
use terminal::out;
use terminal::table::{self, Align, Table};

/// Lists the devices. With an address it also shows what `rdma-core` would take for it.
pub(crate) fn run(listen: Option<IpAddr>, as_json: bool) -> Result<(), Failure> {
    let devices = rdmacore::list_devices();
    let library = rdmacore::library_present().map_err(|e| e.to_string());
    let choice = listen.map(|address| rdmacore::choose(&devices, None, address));
    let auto = listen.map(|address| raasd::decide(&DeviceChoice::Auto, address, &devices, || library.clone()));
    let told = match as_json {
        true => out::line(to_json(&devices, &library, choice.as_ref(), auto.as_ref())),
        false => out::print(to_text(&devices, &library, choice.as_ref(), auto.as_ref())),
    };
    told.map(drop)
}

fn type_name(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::RoceV2 => "RoCEv2",
        _ => "IB or RoCEv1",
    }
}

fn gid_json(gid: &GidInfo) -> Value {
    json!({
        "index": gid.index, "gid": gid.gid.0, "address": gid.gid.ip(), "type": type_name(gid.gid_type), "netdev": gid.netdev,
    })
}

fn port_json(port: &PortInfo) -> Value {
    let gids: Vec<Value> = port.gids.iter().map(gid_json).collect();
    json!({ "number": port.number, "state": port.state, "link_layer": port.link_layer, "gids": gids })
}

fn to_json(
    devices: &[DeviceInfo],
    library: &Result<(), String>,
    choice: Option<&Result<Choice, SelectError>>,
    auto: Option<&Decision>,
) -> Value {
    let mut rows = vec![json!({
        "name": "softnic", "device": "softnic", "usable": true,
        "reason": "RoCEv2 over UDP sockets; needs no hardware, module or root", "software": true, "ports": [],
    })];
    for device in devices {
        let ports: Vec<Value> = device.ports.iter().map(port_json).collect();
        let reason = library.as_ref().err().cloned().unwrap_or_else(|| "through libibverbs".into());
        rows.push(json!({
            "name": device.name, "device": format!("rdma-core:{}", device.name), "usable": library.is_ok(),
            "reason": reason, "software": device.software, "ports": ports,
        }));
    }
    let choice = choice.map(|choice| match choice {
        Ok(c) => json!({
            "device": c.device, "port": c.port, "gid": gid_json(&c.gid), "reason": c.why, "alternatives": c.rejected,
        }),
        Err(e) => json!({ "device": null, "reason": e.to_string(), "alternatives": [] }),
    });
    let auto =
        auto.map(|d| json!({ "device": d.device.to_string(), "reason": d.reason, "alternatives": d.alternatives }));
    json!({ "schema": "raas.device/1", "devices": rows, "choice": choice, "auto": auto })
}

fn to_text(
    devices: &[DeviceInfo],
    library: &Result<(), String>,
    choice: Option<&Result<Choice, SelectError>>,
    auto: Option<&Decision>,
) -> String {
    let columns = ["device", "port", "state", "GID", "address", "type", "interface"].map(|c| (c, Align::Left));
    let mut table = Table::new(&columns);
    table.row(vec!["softnic".into(), String::new(), "usable".into()]);
    for device in devices {
        let name = format!("rdma-core:{}", device.name);
        for port in &device.ports {
            table.row(vec![name.clone(), port.number.to_string(), port.state.clone()]);
            for gid in &port.gids {
                let netdev = gid.netdev.clone().unwrap_or_default();
                let (index, address) = (gid.index.to_string(), gid.gid.ip().to_string());
                let kind = type_name(gid.gid_type).to_string();
                table.row(vec![String::new(), String::new(), String::new(), index, address, kind, netdev]);
            }
        }
    }
    let mut text = table.render();
    if devices.is_empty() {
        text.push_str(&format!("\n{}", table::paragraph(&SelectError::NoDevice.to_string())));
    }
    if let Err(e) = library {
        text.push_str(&format!("\n{}", table::paragraph(&format!("libibverbs: {e}"))));
    }
    match choice {
        Some(Ok(c)) => {
            let choice = format!("rdma-core would take {} port {}, GID {}: {}", c.device, c.port, c.gid.index, c.why);
            text.push_str(&format!("\n{}", table::paragraph(&choice)));
            for other in &c.rejected {
                text.push_str(&table::paragraph(&format!("  not: {other}")));
            }
        }
        Some(Err(e)) => {
            text.push_str(&format!("\n{}", table::paragraph(&format!("rdma-core would take nothing: {e}"))));
        }
        None => {}
    }
    if let Some(d) = auto {
        text.push_str(&format!("\nauto takes {}: {}\n", d.device, d.reason));
        for other in &d.alternatives {
            text.push_str(&format!("  not: {other}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Gid;

    fn device() -> DeviceInfo {
        let address: IpAddr = [10, 0, 0, 1].into();
        let gid = GidInfo { index: 1, gid: Gid::from(address), gid_type: GidType::RoceV2, netdev: Some("eth0".into()) };
        let port = PortInfo { number: 1, state: "ACTIVE".into(), link_layer: "Ethernet".into(), gids: vec![gid] };
        DeviceInfo { name: "rxe0".into(), software: true, ports: vec![port] }
    }

    #[test]
    fn the_choice_and_what_stands_in_its_way_are_told() {
        let devices = [device()];
        let choice = rdmacore::choose(&devices, None, [10, 0, 0, 1].into());
        let all = to_json(&devices, &Ok(()), Some(&choice), None);
        assert_eq!(all["devices"][1]["device"], "rdma-core:rxe0");
        assert_eq!(all["devices"][1]["ports"][0]["gids"][0]["address"], "10.0.0.1");
        assert_eq!((&all["choice"]["device"], &all["choice"]["gid"]["index"]), (&json!("rxe0"), &json!(1)));
        let none = rdmacore::choose(&devices, None, [10, 0, 0, 9].into());
        let text = to_text(
            &devices,
            &Err("not installed".into()),
            Some(&none),
            Some(&raasd::decide(&DeviceChoice::Auto, [10, 0, 0, 9].into(), &devices, || Ok(()))),
        );
        assert!(text.contains("auto takes softnic: this machine has no RDMA hardware"), "{text}");
        assert!(text.contains("libibverbs: not installed") && text.contains("another address"), "{text}");
        let bare = to_json(&[], &Ok(()), None, None);
        assert_eq!((bare["devices"][0]["name"].as_str(), &bare["choice"]), (Some("softnic"), &Value::Null));
    }
}
