//! Which of many devices has the next event.

use std::hint::select_unpredictable;

/// A tournament over the times of a fixed number of players: the winner has the least time, the lower number
/// among equals. Changing one time replays the games on its way to the root, whose other sides are known, so
/// the comparisons do not wait for memory as those of a heap do.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// Node n plays between nodes 2n and 2n + 1; node 1 is the final; the players are the last half.
    /// A time is kept as its bits: those of numbers that are not negative have the same order. Beside it, the tag
    /// of its player.
    nodes: Vec<(u64, u32)>,
    players: usize,
}

impl Tournament {
    /// Makes it a tournament of `players`, whose times are infinite.
    pub(super) fn reset(&mut self, players: usize) {
        self.players = players.next_power_of_two().max(2);
        self.nodes.clear();
        self.nodes.resize(2 * self.players, (f64::INFINITY.to_bits(), 0));
    }

    /// Sets one player's time, which is 0 or more, and what `first` shall say if that is the least.
    #[inline]
    pub(super) fn set(&mut self, player: u32, time: f64, tag: u32) {
        let mut i = self.players + player as usize;
        let mut winner = (time.to_bits(), tag);
        self.nodes[i] = winner;
        while i > 1 {
            let other = self.nodes[i ^ 1];
            // Of equals the left side wins, which is the even one. Who wins is a toss-up: no branch.
            let stays = winner.0 < other.0 + (1 - (i as u64 & 1));
            winner.0 = select_unpredictable(stays, winner.0, other.0);
            winner.1 = select_unpredictable(stays, winner.1, other.1);
            i >>= 1;
            self.nodes[i] = winner;
        }
    }

    /// The least time and its player's tag; infinite where nobody plays.
    #[inline]
    pub(super) fn first(&self) -> (f64, u32) {
        let (time, tag) = self.nodes[1];
        (f64::from_bits(time), tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_time_wins_and_of_equals_the_lower_number() {
        for players in 1..20 {
            let mut tournament = Tournament::default();
            tournament.reset(players);
            let mut times = vec![f64::INFINITY; players];
            for step in 0..500usize {
                let player = step * 7 % players;
                times[player] = if step % 5 == 0 { f64::INFINITY } else { (step * step * 31 % 17) as f64 };
                tournament.set(player as u32, times[player], player as u32);
                let least = times.iter().copied().fold(f64::INFINITY, f64::min);
                assert_eq!(tournament.first().0, least);
                if least < f64::INFINITY {
                    assert_eq!(tournament.first().1 as usize, times.iter().position(|t| *t == least).unwrap());
                }
            }
        }
    }
}
