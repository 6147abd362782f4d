//! What is sealed on its way, and who stands between the ends.

mod packets;
mod records;
