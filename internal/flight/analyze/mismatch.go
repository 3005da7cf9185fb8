package analyze

import (
	"fmt"
	"maps"
	"slices"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/rootcause"
)

// mismatches finds, in each group, the first number under which ranks made different calls. It
// returns that number by group.
func (j *job) mismatches(report *Report) map[*group]uint64 {
	found := map[*group]uint64{}
	for _, g := range j.groups {
		if seq, variants := g.mismatch(); len(variants) > 1 {
			found[g] = seq
			g.report(report, seq, variants)
		}
		g.matchPairs(report)
	}
	return found
}

// variant is a call that some members made under a number.
type variant struct {
	call    backend.Fingerprint
	members []*member // by rank
}

func (v variant) ranks() (ranks []int) {
	for _, m := range v.members {
		ranks = append(ranks, m.rank.Rank)
	}
	slices.Sort(ranks)
	return ranks
}

// mismatch returns the first number under which members made different calls, and those calls. The
// call of most members comes first.
func (g *group) mismatch() (seq uint64, variants []variant) {
	numbers := map[uint64]bool{}
	for _, m := range g.members {
		for n := range m.calls {
			numbers[n] = true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(numbers)) {
		if variants = g.variants(n); len(variants) > 1 {
			return n, variants
		}
	}
	return 0, nil
}

// variants returns the different calls that members made under a number, the most frequent first.
func (g *group) variants(seq uint64) (variants []variant) {
	for _, rank := range slices.Sorted(maps.Keys(g.members)) {
		m := g.members[rank]
		r, ok := m.calls[seq]
		if !ok {
			continue
		}
		print := fingerprint(r)
		i := slices.IndexFunc(variants, func(v variant) bool { return v.call == print })
		if i < 0 {
			i = len(variants)
			variants = append(variants, variant{call: print})
		}
		variants[i].members = append(variants[i].members, m)
	}
	slices.SortStableFunc(variants, func(a, b variant) int { return len(b.members) - len(a.members) })
	return variants
}

// fingerprint returns the part of a call that must be equal on all ranks. The calls within a
// coalesced call may differ.
func fingerprint(r flight.Record) backend.Fingerprint {
	f := r.Call.Fingerprint
	if f.Kind == backend.Group {
		f.Count, f.DType = 0, 0
	}
	return f
}

// report adds a finding about different calls under one number.
func (g *group) report(report *Report, seq uint64, variants []variant) {
	var ranks []int
	var details []string
	for i, v := range variants {
		m := v.members[0]
		details = append(details, fmt.Sprintf("%s: %s", rootcause.Ranks(v.ranks()), call(m.rank.Dump, m.calls[seq])))
		if i > 0 {
			ranks = append(ranks, v.ranks()...)
		}
	}
	summary := fmt.Sprintf("called something else as #%d of group %s than %s", seq, g.name, rootcause.Ranks(variants[0].ranks()))
	if len(variants[0].members) == len(variants[1].members) {
		ranks = append(ranks, variants[0].ranks()...)
		summary = fmt.Sprintf("called different things as #%d of group %s", seq, g.name)
	} else if hint := shift(seq, variants[0].members[0], variants[1].members[0]); hint != "" {
		details = append(details, hint)
	}
	slices.Sort(ranks)
	report.add(Mismatch, ranks, rootcause.Ranks(ranks)+" "+summary, details...)
}

// shift reports, in words, whether the member odd has left out or added one call at number seq and otherwise
// made the same calls as the member usual.
func shift(seq uint64, usual, odd *member) string {
	same := func(a, b uint64) bool {
		x, ok := usual.calls[a]
		y, found := odd.calls[b]
		f, g := fingerprint(x), fingerprint(y)
		f.Seq, g.Seq = 0, 0
		return ok && found && f == g && x.Name == y.Name
	}
	switch {
	case same(seq+1, seq):
		return fmt.Sprintf("it looks as if rank %d left out %v: its #%d is the others' #%d", odd.rank.Rank, usual.calls[seq], seq, seq+1)
	case same(seq, seq+1):
		return fmt.Sprintf("it looks as if rank %d called %v in addition: its #%d is the others' #%d", odd.rank.Rank, odd.calls[seq], seq+1, seq)
	}
	return ""
}

// matchPairs adds a finding if a Recv does not match its Send.
func (g *group) matchPairs(report *Report) {
	for _, rank := range slices.Sorted(maps.Keys(g.members)) {
		from := g.members[rank]
		for _, key := range sortedPairs(from) {
			if key.kind != backend.Send || g.members[key.peer] == nil {
				continue
			}
			to := g.members[key.peer]
			send := from.pairs[key]
			recv, ok := to.pairs[pairKey{backend.Recv, rank, key.seq}]
			if !ok || send.Call.DType == recv.Call.DType && send.Call.Count == recv.Call.Count {
				continue
			}
			ranks := []int{from.rank.Rank, to.rank.Rank}
			slices.Sort(ranks)
			report.add(Mismatch, ranks, fmt.Sprintf("rank %d receives something else than rank %d sends", to.rank.Rank, from.rank.Rank),
				fmt.Sprintf("rank %d: %s", from.rank.Rank, call(from.rank.Dump, send)),
				fmt.Sprintf("rank %d: %s", to.rank.Rank, call(to.rank.Dump, recv)))
			return
		}
	}
}

// sortedPairs returns the keys of a member's Sends and Recvs, in the order of the calls.
func sortedPairs(m *member) []pairKey {
	return slices.SortedFunc(maps.Keys(m.pairs), func(a, b pairKey) int {
		return int(m.pairs[a].Number) - int(m.pairs[b].Number)
	})
}
