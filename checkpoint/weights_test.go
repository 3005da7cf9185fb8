package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// A checkpoint that was exported with everything and imported is equal to the original. An export
// of the weights alone loads into a model; the report lists the weights that do not fit.
func TestExportAndImport(t *testing.T) {
	dir := t.TempDir()
	want := savedBits(t, dir)
	whole, only := filepath.Join(dir, "whole.safetensors"), filepath.Join(dir, "model.safetensors")
	for file, everything := range map[string]bool{whole: true, only: false} {
		if err := Export(dir, file, everything); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := Export(dir, pipe, false); err != nil { // it is written to, and not replaced
		t.Fatal(err)
	}
	written, err := os.ReadFile(only)
	if err != nil {
		t.Fatal(err)
	}
	if through, err := io.ReadAll(reader); err != nil || !bytes.Equal(through, written) {
		t.Errorf("%d bytes came through the pipe, %v, want %d", len(through), err, len(written))
	}
	again, err := Import(whole, filepath.Join(dir, "again"))
	if err != nil {
		t.Fatal(err)
	}
	if differ, err := Diff(dir, again); err != nil || len(differ) > 0 {
		t.Errorf("an imported checkpoint differs: %v, %v", differ, err)
	}
	weights, err := Import(only, filepath.Join(dir, "weights"))
	if err != nil {
		t.Fatal(err)
	}
	if differ, err := Diff(weights, dir); err != nil || !slices.ContainsFunc(differ, func(d Difference) bool { return strings.HasPrefix(d.Name, "value/") }) {
		t.Errorf("weights alone beside their checkpoint: %v, %v, want values among the differences", differ, err)
	}
	commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) error {
		if _, err := resumed(t.Context(), pg, filepath.Dir(again), plain, 3); err != nil {
			return err
		}
		for _, path := range []string{only, dir, weights} {
			r, err := newRun(pg, plain, 2)
			if err != nil {
				return err
			}
			report, err := LoadWeights(path, r.model)
			if err != nil || report.Complete() != nil {
				t.Errorf("%s: %v, %+v", path, err, report)
			}
			if got := bits(r); !maps.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("%s: other weights", path)
			}
		}
		other := nn.Sequential(nn.Linear(7, 13, nil), nn.GELU(), nn.Linear(13, 4, nil), nn.Linear(4, 1, nil))
		if err := nn.Place(other, pg.Device(), 1); err != nil {
			return err
		}
		report, err := LoadWeights(only, other)
		if err != nil {
			return err
		}
		if want := []string{"0.bias", "0.weight"}; !slices.Equal(report.Loaded, want) {
			t.Errorf("loaded %q, want %q", report.Loaded, want)
		}
		if want := []string{"3.bias", "3.weight"}; !slices.Equal(report.Missing, want) || len(report.Mismatched) != 2 {
			t.Errorf("%+v, want %q to be missing and two weights of another shape", report, want)
		}
		part := nn.Sequential(nn.Linear(7, 13, nil))
		if err := nn.Place(part, pg.Device(), 1); err != nil {
			return err
		}
		if report, err = LoadWeights(only, part); err != nil {
			return err
		}
		if want := []string{"2.bias", "2.weight"}; !slices.Equal(report.Unexpected, want) || len(report.Loaded) != 2 {
			t.Errorf("%+v, want %q to be unexpected and two weights loaded", report, want)
		}
		if err := report.Complete(); err == nil || !strings.Contains(err.Error(), "2.weight") {
			t.Errorf("%v, want an error that names what is unexpected", err)
		}
		return nil
	})
}

// Weights that are saved and loaded have the same bits. If they cannot be saved, the earlier file
// remains, and no other file.
func TestSaveWeights(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) error {
		r, err := newRun(pg, plain, 1)
		if err != nil {
			return err
		}
		if err := SaveWeights(t.Context(), file, r.model); err != nil {
			return err
		}
		want := bits(r)
		if r, err = newRun(pg, plain, 2); err != nil {
			return err
		}
		if maps.EqualFunc(bits(r), want, bytes.Equal) {
			t.Error("another seed makes the same weights")
		}
		report, err := LoadWeights(file, r.model)
		if err != nil || report.Complete() != nil {
			t.Errorf("%v, %+v", err, report)
		}
		if !maps.EqualFunc(bits(r), want, bytes.Equal) {
			t.Error("other weights were loaded than were saved")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := SaveWeights(ended, file, r.model); !errors.Is(err, context.Canceled) {
			t.Errorf("saved under a context that has ended: %v", err)
		}
		if report, err := LoadWeights(file, r.model); err != nil || report.Complete() != nil {
			t.Errorf("the file of before: %v, %+v", err, report)
		}
		return nil
	})
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 1 {
		t.Errorf("in the folder there are %q, %v", files, err)
	}
}

// writeTensors writes tensors of Float32 to a safetensors file.
func writeTensors(t *testing.T, file string, tensors map[string][]float32) {
	t.Helper()
	sources := map[string]safetensors.Source{}
	for name, values := range tensors {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		sources[name] = safetensors.Bytes(device.Float32, device.Shape{len(values) / 2, 2}, data)
	}
	if err := writeWeights(file, sources, nil); err != nil {
		t.Fatal(err)
	}
}

// tiedModel is an embedding and a head with one weight [2 2].
type tiedModel struct{ nn.Container }

func newTied() *tiedModel {
	m := &tiedModel{}
	embedding := nn.Add(&m.Container, "wte", nn.Embedding(2, 2, nil))
	head := nn.Add(&m.Container, "head", nn.Linear(2, 2, &nn.LinearOptions{NoBias: true}))
	head.Weight = embedding.Weight
	return m
}

// A file may have tied weights by any of their names, from a model of one file or of several. LoadWeights loads
// them, as Resume does from a checkpoint that Import made. A file with other elements for each name is an error.
func TestTiedWeights(t *testing.T) {
	values, others := []float32{1, 2, 3, 4}, []float32{1, 2, 3, 5}
	for _, c := range []struct {
		tensors map[string][]float32
		missing string // what LoadWeights and Resume say that the file lacks, or else their error
		err     string
	}{
		{map[string][]float32{"wte.weight": values}, "", ""},
		{map[string][]float32{"head.weight": values}, "", ""},
		{map[string][]float32{"wte.weight": values, "head.weight": values}, "", ""},
		{map[string][]float32{"lm_head.weight": values}, "wte.weight", "it lacks"},
		{map[string][]float32{"wte.weight": values, "head.weight": others}, "", "the model shares one tensor between head.weight (float32[2 2]) and wte.weight (float32[2 2])"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "model.safetensors")
		writeTensors(t, file, c.tensors)
		if _, err := Import(file, filepath.Join(dir, "run")); err != nil {
			t.Fatal(err)
		}
		commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) error {
			m := newTied()
			if err := nn.Place(m, pg.Device(), 1); err != nil {
				return err
			}
			check := func(err error) error {
				got, failed := m.Parameters()[0].Var().Read(t.Context())
				if c.err == "" && err == nil && !slices.Equal(got, []float64{1, 2, 3, 4}) {
					t.Errorf("%v: the weight is %v", c.tensors, got)
				}
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v: %v, want %q", c.tensors, err, c.err)
				}
				for _, p := range m.Parameters() {
					clear(p.Var().Tensor().Buf.Host())
				}
				return failed
			}
			report, err := LoadWeights(file, m)
			if err == nil {
				err = report.Complete()
				if got := strings.Join(report.Missing, " "); got != c.missing {
					t.Errorf("%v: %q are missing, want %q", c.tensors, got, c.missing)
				}
			}
			if err := check(err); err != nil {
				return err
			}
			ck, err := Open(t.Context(), pg, filepath.Join(dir, "run"), nil)
			if err != nil {
				return err
			}
			_, err = ck.Resume(t.Context(), State{Model: m})
			return errors.Join(check(err), ck.Close())
		})
	}
}

// The index of a model in several files, and a folder with one model, stand for all tensors. An index that does not fit
// its files is an error that names the file.
func TestModelsOfSeveralFiles(t *testing.T) {
	const index = "model.safetensors.index.json"
	for _, c := range []struct {
		index string // its weight_map
		want  string // the tensors, or what the error contains
	}{
		{`{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}`, "a b"},
		{`{"weight_map": {"a": "1.safetensors", "c": "2.safetensors"}}`, `tensor "c" is in 2.safetensors, but that file lacks it`},
		{`{"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}}`, "3.safetensors: no such file"},
		{`{"weight_map": {"a": "1.safetensors", "b": "4.safetensors"}}`, `tensor "a" is also in another file`},
		{`{"weight_map": {"a": "5.safetensors"}}`, "5.safetensors: want a safetensors file, but it is a git-lfs pointer"},
		{`{"weight_map": {"a": "../1.safetensors"}}`, "want a file in the same folder"},
		{`{"weight_map": {"a": 1}}`, "cannot unmarshal number"},
		{`{"weight_map": {}}`, `no "weight_map"`},
		{"version https://git-lfs.github.com/spec/v1\n", "want an index of safetensors files, but it is a git-lfs pointer"},
	} {
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		writeTensors(t, at("1.safetensors"), map[string][]float32{"a": {1, 2}})
		writeTensors(t, at("2.safetensors"), map[string][]float32{"b": {3, 4}})
		writeTensors(t, at("4.safetensors"), map[string][]float32{"a": {3, 4}})
		if err := errors.Join(os.WriteFile(at(index), []byte(c.index), 0o600),
			os.WriteFile(at("5.safetensors"), []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, at(index)} {
			w, err := openWeights(path)
			got := ""
			if err == nil {
				got = strings.Join(slices.Sorted(maps.Keys(w.tensors)), " ")
				if data, err := w.read("b"); err != nil || !bytes.Equal(data, []byte{0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40}) {
					t.Errorf("b is %v, %v", data, err)
				}
				if err := w.close(); err != nil {
					t.Error(err)
				}
			}
			if got != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s of %s: %q, %v, want %q", path, c.index, got, err, c.want)
			}
		}
		if c.want == "a b" {
			made, err := Import(at(index), at("run"))
			if err == nil {
				err = Verify(made)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if _, err := Latest(dir); c.want != "a b" && (err == nil || !strings.Contains(err.Error(), index)) {
			t.Errorf("%v, want an error that names the index", err)
		}
	}
}

// A checkpoint of a file with types that devices do not have holds their elements to the bit. Resume loads the rest, and
// says what it leaves out.
func TestTypesThatDevicesDoNotHave(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.safetensors"), filepath.Join(dir, "to.safetensors")
	sources := map[string]safetensors.Source{"wte.weight": safetensors.Bytes(device.Float32, device.Shape{2, 2}, make([]byte, 16))}
	for _, dtype := range []safetensors.DType{"BOOL", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I16", "U16", "U32", "U64", "C64", "F4", "F6_E2M3"} {
		data := make([]byte, 8*dtype.Bits()/8)
		for i := range data {
			data[i] = byte(i*37 + len(dtype))
		}
		sources["mask."+string(dtype)] = safetensors.Source{Format: dtype, Shape: device.Shape{4, 2}, Write: content(data)}
	}
	if err := writeWeights(from, sources, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	made, err := Import(from, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Verify(made), Export(run, to, false)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(to); err != nil || !bytes.Equal(after, before) {
		t.Errorf("exported again, the file has other bytes: %v", err)
	}
	writeTensors(t, to, map[string][]float32{"wte.weight": {0, 0, 0, 0}, "mask.BOOL": {1, 2}})
	other, err := Import(to, filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	if differ, err := Diff(made, other); err != nil || len(differ) != 12 || differ[0].Text != "BOOL[4 2] and float32[1 2]" {
		t.Errorf("%v, %v, want 12 differences", differ, err)
	}
	var log bytes.Buffer
	commtest.OnGoroutines(t, 1, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
		m := newTied()
		if err := nn.Place(m, pg.Device(), 1); err != nil {
			return err
		}
		ck, err := Open(t.Context(), pg, run, nil)
		if err != nil {
			return err
		}
		_, err = ck.Resume(t.Context(), State{Model: m})
		return errors.Join(err, ck.Close())
	})
	if !strings.Contains(log.String(), "model/mask.F8_E4M3 F8_E4M3[4 2]") {
		t.Errorf("the log is %q, want what was left out", &log)
	}
}

// Weights of parameters that are divided among ranks are saved when they are whole, and each rank loads its parts.
func TestWeightsOfDividedParameters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		saved, loaded := must.New(newRun(pg, third, 1)), must.New(newRun(pg, third, 2))
		content := func(r *run) (all map[string][]byte, err error) {
			return all, r.model.(*zero.Model).Whole(func() error { all = bits(r); return nil })
		}
		err := saved.model.(*zero.Model).Whole(func() error {
			if pg.Rank() > 0 {
				return nil
			}
			return SaveWeights(t.Context(), file, saved.net)
		})
		if err := errors.Join(err, pg.Barrier().Sync(t.Context())); err != nil {
			return err
		}
		report, err := LoadWeights(file, loaded.net)
		if err == nil {
			err = report.Complete()
		}
		if err != nil {
			return err
		}
		if a, b := must.New(content(saved)), must.New(content(loaded)); !maps.EqualFunc(a, b, bytes.Equal) {
			return errors.New("the loaded weights differ")
		}
		return nil
	})
}
