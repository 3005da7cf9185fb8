package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// Trace follows waits: from the ranks that this rank waits for to those which they wait
// for, and so on. It asks every peer, over the control connections, whom its collective
// waits for, and returns the ranks that do not answer before ctx ends; if all on the way
// answer, those that wait for nobody; if there is none of these either, waits itself.
// Called by one goroutine at a time.
func (g *Group) Trace(ctx context.Context, waits []int) []int {
	if len(waits) == 0 {
		return nil
	}
	return follow(g.cfg.Rank, waits, g.net.ask(ctx))
}

// follow is Trace of a rank that got these answers, by rank.
func follow(rank int, waits []int, answers map[int][]int) []int {
	var silent, idle []int
	seen := map[int]bool{rank: true}
	for next := slices.Clone(waits); len(next) > 0; {
		r := next[0]
		next = next[1:]
		if seen[r] {
			continue
		}
		seen[r] = true
		theirs, answered := answers[r]
		switch {
		case !answered:
			silent = append(silent, r)
		case len(theirs) == 0:
			idle = append(idle, r)
		default:
			next = append(next, theirs...)
		}
	}
	for _, ends := range [][]int{silent, idle} {
		if len(ends) > 0 {
			slices.Sort(ends)
			return ends
		}
	}
	return waits
}

// ask asks all peers at once. A rank whose peers all answer returns at once.
func (n *linkNet) ask(ctx context.Context) map[int][]int {
	answers := map[int][]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for r, l := range n.links {
		if l == nil {
			continue
		}
		wg.Go(func() {
			ranks, err := l.ask(ctx)
			if err != nil || slices.ContainsFunc(ranks, func(r int) bool { return r < 0 || r >= len(n.links) }) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers[r] = ranks
		})
	}
	wg.Wait()
	return answers
}

// ask asks the peer whom its collective waits for.
func (l *link) ask(ctx context.Context) ([]int, error) {
	select {
	case <-l.waits: // of an earlier question, too late
	default:
	}
	if err := l.tell(frameAsk, nil, -1); err != nil {
		return nil, err
	}
	select {
	case ranks := <-l.waits:
		return ranks, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func encodeRanks(ranks []int) []byte {
	b := make([]byte, 0, 4*len(ranks))
	for _, r := range ranks {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return b
}

func decodeRanks(b []byte) ([]int, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("ranks of %d bytes, want 4 each", len(b))
	}
	ranks := make([]int, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		ranks = append(ranks, int(binary.LittleEndian.Uint32(b)))
	}
	return ranks, nil
}
