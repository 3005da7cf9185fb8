package buckets

import (
	"encoding/json"
	"github.com/goddp/goddp/ddp/reducer"
	"reflect"
	"runtime"
	"strings"
	"testing"
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
