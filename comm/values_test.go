package comm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm/flight/analyze"

	"github.com/goddp/goddp/comm/flight"
)

// forgedRecord is a record of a job of so many ranks that no recorder wrote.
func forgedRecord(rank, size int) []byte {
	return fmt.Appendf(nil, `{"version": 2, "rank": %d, "world_size": %d, "taken": "2030-01-01T00:01:00Z", "reason": "why",
		"groups": [{"name": "default", "rank": %[1]d, "size": %[2]d, "enqueued": 7}],
		"records": [{"number": 1, "group": "default", "state": "running", "queued": "2020-01-01T00:00:00Z", "call": {"kind": "AllReduce", "seq": 7}}]}`, rank, size)
}

// A record of another rank, of another job, or of a size that no job has, is not
// compared with the others: the comparison takes memory by that size.
func TestForgedRecordsAreLeftOut(t *testing.T) {
	for _, c := range []struct{ rank, size int }{{1, 2_000_000_000}, {1, 1 << 20}, {0, 2}, {1, 3}, {-1, 2}} {
		if _, err := decodeRecord(forgedRecord(c.rank, c.size), 1, 2); err == nil {
			t.Errorf("a record of rank %d of %d is believed by rank 0 of 2", c.rank, c.size)
		}
	}
	if _, err := decodeRecord(append(forgedRecord(1, 2), bytes.Repeat([]byte(" "), maxRecord)...), 1, 2); err == nil {
		t.Error("a record of more than 1 MiB is read")
	}
	d, err := decodeRecord(forgedRecord(1, 2), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if r := analyze.Analyze([]*flight.Dump{d}); r.WorldSize != 2 {
		t.Errorf("judged as of %d ranks", r.WorldSize)
	}
}

func TestAnnouncementsAreBounded(t *testing.T) {
	for _, rank := range []int{-1, 2, 2_000_000_000} {
		value := fmt.Appendf(nil, `{"Rank": %d, "Text": "why"}`, rank)
		if a, err := decodeAnnouncement(value, 2); err == nil {
			t.Errorf("%+v is believed in a job of 2", a)
		}
	}
	long := announcement{Rank: 1, Text: strings.Repeat("\x00", 2*maxAnnouncement)}
	value, err := long.encode()
	if err != nil {
		t.Fatal(err)
	}
	if a, err := decodeAnnouncement(value, 2); err != nil || len(a.Text) != maxText {
		t.Errorf("a text of %d bytes arrives with %d, %v; want %d", len(long.Text), len(a.Text), err, maxText)
	}
}

// FuzzStoreValues reads what other ranks left in the store: the first failure, and
// their records.
func FuzzStoreValues(f *testing.F) {
	f.Add([]byte(`{"Rank":1,"Text":"why","Asks":true}`))
	f.Add([]byte(`{"Rank":2000000000,"Text":"why"}`))
	f.Add(forgedRecord(1, 2))
	f.Add(forgedRecord(1, 2_000_000_000))
	f.Add([]byte(`{"version": 2, "rank": 1, "world_size": 2, "records": [` + strings.Repeat("{},", 1000) + `{}]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		const rank, size = 1, 2
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		first, notAnnounced := decodeAnnouncement(value, size)
		dump, notRecorded := decodeRecord(value, rank, size)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+64*len(value)); taken > most {
			t.Fatalf("%d bytes taken for a value of %d, at most %d", taken, len(value), most)
		}
		if notAnnounced == nil {
			text, err := first.encode()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := decodeAnnouncement(text, size); err != nil || again != first && len(first.Text) <= maxText {
				t.Fatalf("told on: %+v, %v; came as %+v", again, err, first)
			}
		}
		if notRecorded == nil {
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
