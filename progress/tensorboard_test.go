package progress_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/progress"
)

// writeEvents writes runs of 20 steps into a folder, which begin after the given steps.
func writeEvents(t *testing.T, begin ...int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, first := range begin {
		m, err := progress.New(0, &progress.Options{File: "tb:" + dir, Out: io.Discard, First: first})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if m.Step(1) {
				m.Log(progress.V("loss", float64(first)+0.5))
			}
		}
		m.Note(progress.V("accuracy", math.NaN()))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Each record has its checksums, and each event its time, its step and its scalars.
func TestEventFiles(t *testing.T) {
	names, err := filepath.Glob(writeEvents(t, 0, 10) + "/events.out.tfevents.*")
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	for i, want := range []string{
		"0 brain.Event:2; 1 start; 10 loss=0.5; 20 loss=0.5; 20 accuracy=NaN; ",
		"0 brain.Event:2; 11 start; 20 loss=10.5; 30 loss=10.5; 30 accuracy=NaN; ",
	} {
		text, err := os.ReadFile(names[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := describeEvents(t, text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// describeEvents decodes an event file, without the times and the numbers of the process.
func describeEvents(t *testing.T, text []byte) (out string) {
	t.Helper()
	check := func(b []byte, masked uint32) {
		rotated := masked - 0xa282ead8
		if crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)); rotated>>17|rotated<<15 != crc {
			t.Errorf("checksum %x, want %x", rotated, crc)
		}
	}
	for len(text) > 0 {
		n := binary.LittleEndian.Uint64(text)
		check(text[:8], binary.LittleEndian.Uint32(text[8:]))
		event := text[12 : 12+n]
		check(event, binary.LittleEndian.Uint32(text[12+n:]))
		text = text[16+n:]
		eachField(t, event, func(field protowire.Number, v uint64, b []byte) {
			switch field {
			case 2:
				out += fmt.Sprint(v)
			case 3:
				out += " " + string(b)
			case 5:
				eachField(t, b, func(_ protowire.Number, _ uint64, value []byte) {
					var tag string
					eachField(t, value, func(field protowire.Number, v uint64, b []byte) {
						if field == 1 {
							tag = string(b)
						} else if tag == "loss" || tag == "accuracy" {
							out += fmt.Sprintf(" %s=%v", tag, math.Float32frombits(uint32(v)))
						}
					})
				})
			case 7:
				out += " start"
			}
		})
		out += "; "
	}
	return out
}

func eachField(t *testing.T, b []byte, f func(protowire.Number, uint64, []byte)) {
	t.Helper()
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		b = b[n:]
		var v uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v32 uint32
			v32, n = protowire.ConsumeFixed32(b)
			v = uint64(v32)
		default:
			bytes, n = protowire.ConsumeBytes(b)
		}
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		b = b[n:]
		f(field, v, bytes)
	}
}

// The real TensorBoard reads one curve without the steps that were made twice, also those of a run that begins anew.
func TestTensorBoardReadsEvents(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Python("import tensorboard"))
	for want, begin := range map[string][]int{
		"[(10, 0.5), (20, 10.5), (30, 10.5)] True\n": {0, 10},
		"[(10, 0.5), (20, 0.5)] True\n":              {0, 10, 0},
	} {
		out := testkit.RunPython(t, nil, "-c", `
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1])
a.Reload()
print([(s.step, s.value) for s in a.Scalars("loss")], "accuracy" in a.Tags()["scalars"])
`, writeEvents(t, begin...))
		if string(out) != want {
			t.Errorf("runs after %v: got %s, want %s", begin, out, want)
		}
	}
}
