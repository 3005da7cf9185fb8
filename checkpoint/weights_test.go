package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
)

// A checkpoint that was exported with everything and imported is equal to the original. An export
// of the weights alone loads into a model; the report lists the weights that do not fit.
func TestExportAndImport(t *testing.T) {
	dir := t.TempDir()
	want := map[string][]byte{}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		r, err := saved(t.Context(), pg, dir, zeros, 3)
		if err == nil && pg.Rank() == 0 {
			want = bits(r)
		}
		return err
	})
	whole, only := filepath.Join(dir, "whole.safetensors"), filepath.Join(dir, "model.safetensors")
	for file, everything := range map[string]bool{whole: true, only: false} {
		if err := Export(dir, file, everything); err != nil {
			t.Fatal(err)
		}
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
		other := nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 4), nn.Linear(4, 1))
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
		part := nn.Sequential(nn.Linear(7, 13))
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
