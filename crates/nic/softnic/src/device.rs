//! [`SoftNicDevice`]: software NICs of one address, a socket for each.

use std::path::PathBuf;

use verbs::Device;

use crate::{OpenError, SoftNic, SoftNicConfig};

/// The software NIC of an address as a device: context *i* is a [`SoftNic`] at the *i*-th UDP port from
/// [`SoftNicConfig::udp_port`] on. With port 0 the system chooses each port.
///
/// Context 0 writes its capture to the file that the configuration names, context *i* to that name and `.i`. A fixed
/// [`SoftNicConfig::entropy`] gives each context a seed of its own.
#[derive(Debug)]
pub struct SoftNicDevice {
    config: SoftNicConfig,
    /// Contexts that were opened.
    opened: u32,
}

impl SoftNicDevice {
    /// The device; nothing is opened.
    pub fn new(config: SoftNicConfig) -> Self {
        Self { config, opened: 0 }
    }

    /// How the context with this number is opened.
    fn context(&self, number: u16) -> Result<SoftNicConfig, OpenError> {
        let mut config = self.config.clone();
        if number == 0 {
            return Ok(config);
        }
        let first = config.udp_port;
        if first != 0 {
            config.udp_port = first.checked_add(number).ok_or(OpenError::NoPort { first, context: number })?;
        }
        config.pcap = config.pcap.map(|path| {
            let mut name = path.into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        });
        if let Some(seed) = &mut config.entropy {
            seed.iter_mut().zip(number.to_le_bytes()).for_each(|(byte, of_number)| *byte ^= of_number);
        }
        Ok(config)
    }
}

impl Device for SoftNicDevice {
    type Context = SoftNic;
    type Error = OpenError;

    /// A context that could not be opened leaves its number to the next call.
    fn open(&mut self) -> Result<SoftNic, OpenError> {
        let number = u16::try_from(self.opened).map_err(|_| OpenError::TooManyContexts)?;
        let nic = SoftNic::open(self.context(number)?)?;
        self.opened += 1;
        Ok(nic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(udp_port: u16) -> SoftNicDevice {
        let base = SoftNicConfig::new([127, 0, 0, 1].into());
        SoftNicDevice::new(SoftNicConfig { udp_port, entropy: Some([7; 32]), pcap: Some("/x/nic.pcap".into()), ..base })
    }

    #[test]
    fn contexts_have_ports_captures_and_seeds_of_their_own() {
        let device = device(4791);
        let contexts = [0, 1, 256].map(|number| device.context(number).unwrap());
        assert_eq!(contexts.each_ref().map(|c| c.udp_port), [4791, 4792, 5047]);
        let captures = contexts.each_ref().map(|c| c.pcap.clone().unwrap());
        assert_eq!(captures, ["/x/nic.pcap", "/x/nic.pcap.1", "/x/nic.pcap.256"].map(PathBuf::from));
        let seeds = contexts.each_ref().map(|c| c.entropy.unwrap());
        assert_eq!(seeds[0], [7; 32]);
        assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2] && seeds[2] != seeds[0]);
    }

    #[test]
    fn ports_end_with_an_error_and_the_systems_choice_does_not() {
        assert_eq!(device(u16::MAX - 1).context(1).unwrap().udp_port, u16::MAX);
        let refused = device(u16::MAX - 1).context(2).unwrap_err();
        assert!(refused.to_string().contains("choose 65533 or less"), "{refused}");
        assert_eq!(device(0).context(u16::MAX).unwrap().udp_port, 0);
    }
}
