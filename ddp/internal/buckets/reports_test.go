package buckets

import (
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// FuzzReport decodes arbitrary text as the report of rank 1. A decoded report is about rank 1, and
// decoding does not take much memory.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"Rank":1,"Params":["a","b"],"Cause":"why"}`))
	f.Add([]byte(`{"Rank":2000000000,"Params":["a"]}`))
	f.Add([]byte(`{"NonFinite":{"Rank":1,"Bucket":2000000000,"Param":"a","Params":-1}}`))
	f.Add([]byte(`{"Graph":{"Rank":7,"NewlyUsed":["a"]}}`))
	f.Add([]byte(`{"Rank":1,"Params":[` + strings.Repeat(`"",`, 1000) + `""]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		const rank = 1
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := decodeReport(text, rank)
		runtime.ReadMemStats(&after)
		if taken, most := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+64*len(text)); taken > most {
			t.Fatalf("%d bytes taken for a report of %d, at most %d", taken, len(text), most)
		}
		if err != nil {
			return
		}
		if r.isIncomplete() && r.Rank != rank || r.NonFinite != nil && r.NonFinite.Rank != rank || r.Graph != nil && r.Graph.Rank != rank {
			t.Fatalf("%+v is believed of rank %d", r, rank)
		}
		_ = (&reducer.MissingGradientError{Missing: []reducer.Missing{r.Missing}}).Error()
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := decodeReport(again, rank); err != nil || !reflect.DeepEqual(second, r) {
			t.Fatalf("%s is read as %+v, %v; want %+v", again, second, err, r)
		}
	})
}

// If the report of one rank is missing, the error has the reports of the others, and names that rank.
func TestCollectWithoutOneReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, err := comm.Local(3, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for _, pg := range groups {
				pg.Close()
			}
		}()
		var rs [3]reports
		var wg sync.WaitGroup
		for i, pg := range groups {
			wg.Go(func() { rs[i], _ = newReports(t.Context(), pg) })
		}
		wg.Wait()
		if err := rs[2].publish(t.Context(), report{Pass: 1, Missing: reducer.Missing{Rank: 2, Cause: "no gradient"}}); err != nil {
			t.Fatal(err)
		}
		var missing *reducer.MissingGradientError
		if err := rs[0].collect(t.Context(), 1, []bool{false, true, true}, nil); !errors.As(err, &missing) || len(missing.Missing) != 2 {
			t.Fatalf("got %v, want an error about two ranks", err)
		}
		for i, want := range []reducer.Missing{{Rank: 1, Cause: "its report cannot be read"}, {Rank: 2, Cause: "no gradient"}} {
			if got := missing.Missing[i]; got.Rank != want.Rank || !strings.HasPrefix(got.Cause, want.Cause) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		// A report that could not be published does not count as published: collect replaces it.
		large := report{Pass: 2, Missing: reducer.Missing{Rank: 1, Cause: strings.Repeat("x", 9<<20)}}
		if err := rs[1].publish(t.Context(), large); err == nil || rs[1].published == 2 {
			t.Errorf("publishing failed with %v; published %d", err, rs[1].published)
		}
	})
}
