package comm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// forgedAccount returns the encoded account of a rank in a job of the given size that waits for another rank.
// No recorder wrote the record in it.
func forgedAccount(rank, size, waits int) []byte {
	return fmt.Appendf(nil, `{"version": 3, "rank": %d, "world_size": %d, "taken": "2030-01-01T00:01:00Z", "reason": "why", "waits": [%d],
		"groups": [{"name": "default", "rank": %[1]d, "size": %[2]d, "enqueued": 7}],
		"records": [{"number": 1, "group": "default", "state": "running", "queued": "2020-01-01T00:00:00Z", "call": {"kind": "AllReduce", "seq": 7}}]}`, rank, size, waits)
}

// decodeAccount rejects a flight record of another rank, of another job, or of an impossible
// size. Analyzing a record takes memory in proportion to the size of the job that the record
// states.
func TestForgedAccountsAreLeftOut(t *testing.T) {
	for _, c := range []struct{ rank, size int }{{1, 2_000_000_000}, {1, 1 << 20}, {0, 2}, {1, 3}, {-1, 2}} {
		if _, err := decodeAccount(forgedAccount(c.rank, c.size, 0), 1, 2); err == nil {
			t.Errorf("a record of rank %d of %d is believed by rank 0 of 2", c.rank, c.size)
		}
	}
	for _, r := range []int{-1, 2} {
		if _, err := decodeAccount(forgedAccount(1, 2, r), 1, 2); err == nil {
			t.Errorf("rank %d of 2 is believed to be waited for", r)
		}
	}
	if _, err := decodeAccount(append(forgedAccount(1, 2, 0), bytes.Repeat([]byte(" "), maxAccount)...), 1, 2); err == nil {
		t.Error("an account of more than 1 MiB is read")
	}
	a, err := decodeAccount(forgedAccount(1, 2, 0), 1, 2)
	if err != nil || len(a.Waits) != 1 {
		t.Fatal(a.Waits, err)
	}
	if r := analyze.Analyze([]*flight.Dump{a}); r.WorldSize != 2 {
		t.Errorf("judged as of %d ranks", r.WorldSize)
	}
	if a, err := decodeAccount(nil, 1, 2); err != nil || !a.Taken.IsZero() { // the account of a rank that has left
		t.Error(a, err)
	}
}

// FuzzAccounts decodes arbitrary bytes as the account of another rank. decodeAccount must not
// allocate much more memory than the bytes take.
func FuzzAccounts(f *testing.F) {
	f.Add(forgedAccount(1, 2, 2_000_000_000))
	f.Add(forgedAccount(1, 2, 0))
	f.Add(forgedAccount(1, 2_000_000_000, 0))
	f.Add([]byte(`{"version": 3, "rank": 1, "world_size": 2, "records": [` + strings.Repeat("{},", 1000) + `{}]}`))
	f.Add([]byte(`{"version": 3, "rank": 1, "world_size": 2, "waits": [` + strings.Repeat("0,", 1000) + `0]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		const rank, size = 1, 2
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		dump, err := decodeAccount(value, rank, size)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+64*len(value)); taken > most {
			t.Fatalf("%d bytes taken for a value of %d, at most %d", taken, len(value), most)
		}
		if err == nil {
			_ = analyze.Analyze([]*flight.Dump{dump}).String()
			text, err := json.Marshal(dump)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := flight.Decode(text); err != nil || again.Rank != rank || again.WorldSize != size {
				t.Fatalf("%s: %v", text, err)
			}
		}
	})
}
