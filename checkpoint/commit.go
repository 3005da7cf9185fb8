package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// commit waits until every rank has reported its share, and then publishes the files in the folder temp as
// the latest checkpoint. It returns the path of the checkpoint. Only rank 0 calls commit.
func (m *Manager) commit(ctx context.Context, s *saving, temp string) (string, error) {
	shares, err := m.gather(ctx, s.seq)
	if err == nil {
		m.o.phase("commit")
	}
	if now := readHolder(m.dir); now.ID != "" && now.ID != m.id { // the other job may have deleted shares
		return "", fmt.Errorf("%v has taken over the folder from this job: only one job at a time may save in it", now)
	}
	if err != nil {
		return "", err
	}
	manifest, err := merge(shares)
	if err != nil {
		return "", err
	}
	if manifest.NonFinite != "" && m.o.RequireFinite {
		return "", fmt.Errorf("%s has a NaN or an Inf, want finite values (RequireFinite)", manifest.NonFinite)
	}
	for i, f := range manifest.Files {
		info, err := stat(m.fs, filepath.Join(temp, f.Name))
		if err != nil {
			return "", fmt.Errorf("rank %d has written its files, but rank 0 does not see them (is the folder shared by all hosts?): %w", i, err)
		}
		if info.Size() != f.Bytes {
			return "", fmt.Errorf("rank %d has written %d bytes to %s, but rank 0 sees %d", i, f.Bytes, f.Name, info.Size())
		}
	}
	if manifest.Number, err = nextNumber(m.dir); err != nil {
		return "", err
	}
	name, err := newName(m.dir, s.step)
	if err != nil {
		return "", err
	}
	path := filepath.Join(m.dir, name)
	if err := publish(m.fs, m.dir, name, temp, manifest); err != nil {
		return "", err
	}
	if manifest.NonFinite != "" && !m.hasWarned {
		m.hasWarned = true
		m.pg.Log().Warn("a checkpoint has a NaN or an Inf: the last finite one is kept", "checkpoint", path, "tensor", manifest.NonFinite)
	}
	return path, nil
}

// publish writes the manifest into the folder temp, whose files must be durable. Then it renames temp to name, and
// writes name to the file latest. Each of the three steps is durable before the next one begins.
func publish(fs filesystem, dir, name, temp string, manifest *Manifest) error {
	data, err := manifest.encode()
	if err != nil {
		return err
	}
	err = create(fs, filepath.Join(temp, manifestName), content(data))
	if err == nil {
		err = fs.SyncFolder(temp)
	}
	if err == nil {
		err = fs.Rename(temp, filepath.Join(dir, name))
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("another job saves in this folder, but only one job at a time may use it: %w", err)
		}
	}
	if err == nil {
		err = fs.SyncFolder(dir)
	}
	if err != nil {
		return err
	}
	return replace(fs, filepath.Join(dir, latestName), temp+"-latest", content([]byte(name+"\n")))
}

// gather waits for the shares of all ranks. Its error names the ranks whose share failed, up to the first that is lost or did
// not report in time.
func (m *Manager) gather(ctx context.Context, seq int) ([]share, error) {
	shares := make([]share, m.pg.Size())
	var failed []string
	for r := range shares {
		if err := m.await(ctx, r, m.shareKey(seq), &shares[r]); err != nil {
			failed = append(failed, fmt.Sprintf("rank %d did not say that its share is durable: %v", r, err))
			break
		}
		if shares[r].Err != "" {
			failed = append(failed, fmt.Sprintf("rank %d: %s", r, shares[r].Err))
		}
	}
	if failed != nil {
		return nil, errors.New(strings.Join(failed, "; "))
	}
	return shares, nil
}

// merge combines all ranks' shares into a manifest. Its error names the ranks whose shares contradict
// each other.
func merge(shares []share) (*Manifest, error) {
	first := &shares[0]
	m := &Manifest{
		Format: formatName, Version: Version, Step: first.Step, Time: time.Now().UTC(), WorldSize: len(shares),
		Optimizers: first.Optimizers, Values: first.Values, Hooks: first.Hook, Best: first.Best,
	}
	tensors := map[string]int{} // index in m.Tensors
	for rank := range shares {
		s := &shares[rank]
		switch {
		case s.Step != first.Step:
			return nil, fmt.Errorf("rank %d saves step %d, rank 0 step %d", rank, s.Step, first.Step)
		case s.Layout != first.Layout:
			return nil, fmt.Errorf("the tensors of rank %d have other names, types or shapes than those of rank 0", rank)
		case !slices.Equal(s.Optimizers, first.Optimizers):
			return nil, fmt.Errorf("the optimizers of rank %d have made %d steps, those of rank 0 %d steps", rank, s.Optimizers, first.Optimizers)
		case s.Hook != first.Hook:
			return nil, errors.New("some ranks save the state of a communication hook and others do not")
		}
		m.NonFinite = cmp.Or(m.NonFinite, s.NonFinite)
		m.Files = append(m.Files, s.File)
		m.RankValues = append(m.RankValues, s.RankValues)
		for _, t := range s.Tensors {
			i, known := tensors[key(t.Kind, t.Name)]
			if !known {
				i = len(m.Tensors)
				tensors[key(t.Kind, t.Name)] = i
				whole := t
				whole.Parts = []Part{}
				m.Tensors = append(m.Tensors, whole)
			}
			for _, p := range t.Parts {
				p.File = rank
				m.Tensors[i].Parts = append(m.Tensors[i].Parts, p)
			}
		}
	}
	sortTensors(m.Tensors)
	for i := range m.Tensors {
		slices.SortFunc(m.Tensors[i].Parts, func(a, b Part) int { return cmp.Compare(a.Lo, b.Lo) })
	}
	return m, m.check()
}

// deleteOld deletes all checkpoints except the last Options.Keep ones, the last finite one and the best one. Before the
// first deletion it reads back the checkpoint at the path committed and compares the checksums.
func (m *Manager) deleteOld(committed string) error {
	if m.o.Keep == 0 {
		return nil
	}
	all, err := List(m.dir)
	if err != nil {
		return err
	}
	var old []Info
	seen, seenFinite := 0, false
	for _, info := range all {
		if info.Manifest == nil {
			continue // the corrupt checkpoint is kept, so that a person can examine it
		}
		isLastFinite := info.Manifest.NonFinite == "" && !seenFinite
		if seen++; seen > m.o.Keep && !info.Latest && !info.Best && !isLastFinite {
			old = append(old, info)
		}
		seenFinite = seenFinite || isLastFinite
	}
	if len(old) == 0 {
		return nil
	}
	if err := verify(m.fs, committed); err != nil {
		return fmt.Errorf("the checkpoint just written cannot be read back: %w", err)
	}
	for _, info := range old {
		// The folder is renamed first, because a partly deleted folder must not have the name of a
		// checkpoint.
		temp := m.temp("deleted-" + filepath.Base(info.Path))
		if err := m.fs.Rename(info.Path, temp); err != nil {
			return err
		}
		if err := m.fs.RemoveAll(temp); err != nil {
			return err
		}
	}
	return nil
}
