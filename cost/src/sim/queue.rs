//! Which of many devices has the next event.

/// A tournament over the times of a fixed number of players: the winner has the least time, the lower number
/// among equals. Changing one time replays the games on its way to the root, whose other sides are known, so
/// the comparisons do not wait for memory as those of a heap do.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// Node n plays between nodes 2n and 2n + 1; node 1 is the final; the players are the last half.
    nodes: Vec<(f64, u32)>,
    players: usize,
}

impl Tournament {
    /// Makes it a tournament of `players`, whose times are infinite.
    pub(super) fn reset(&mut self, players: usize) {
        self.players = players.next_power_of_two().max(2);
        self.nodes.clear();
        self.nodes.resize(2 * self.players, (f64::INFINITY, 0));
        for i in 0..self.players {
            self.nodes[self.players + i].1 = i as u32;
        }
    }

    /// Sets one player's time.
    #[inline]
    pub(super) fn set(&mut self, player: u32, time: f64) {
        let mut i = self.players + player as usize;
        let mut winner = (time, player);
        self.nodes[i] = winner;
        while i > 1 {
            let other = self.nodes[i ^ 1];
            // Of equals the left side wins, which is the even one.
            let stays = winner.0 < other.0 || (winner.0 == other.0 && i & 1 == 0);
            winner = if stays { winner } else { other };
            i >>= 1;
            self.nodes[i] = winner;
        }
    }

    /// The least time and whose it is; infinite where nobody plays.
    #[inline]
    pub(super) fn first(&self) -> (f64, u32) {
        self.nodes[1]
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
                tournament.set(player as u32, times[player]);
                let least = times.iter().copied().fold(f64::INFINITY, f64::min);
                assert_eq!(tournament.first().0, least);
                if least < f64::INFINITY {
                    assert_eq!(tournament.first().1 as usize, times.iter().position(|t| *t == least).unwrap());
                }
            }
        }
    }
}
