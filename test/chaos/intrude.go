package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// strangerUID is the user id of the stranger.
const strangerUID = 54321

// forgery returns what a stranger sends to every listening port, in the protocol of
// PyTorch's store: two SETs which claim that rank 0 cannot join and that one of its calls
// failed, and a GETNUMKEYS, because a server answers that if it accepted the client.
func forgery() []byte {
	text := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	b := binary.LittleEndian.AppendUint32([]byte{0}, 0x3C85F7CE)
	for _, key := range []string{"/goddp/0/group/1/backend/failed", "/goddp/0/group/1/failure"} {
		b = text(text(append(b, 1), key), `{"Rank":0,"Text":"a stranger says so"}`)
	}
	const getNumKeys = 7
	return append(b, getNumKeys)
}

// intrude sends forgeries, as another user, to every port on which the scenario's
// processes listen, until ctx ends. It counts the accepted connections in taken and
// returns how many connections got an answer.
func intrude(ctx context.Context, dir string, taken *atomic.Int64) (answered int, err error) {
	targets := make(chan address)
	go func() { // only the job's own user can read in /proc where its processes listen
		defer close(targets)
		sent := map[address]int{}
		for ctx.Err() == nil {
			for _, a := range listeners(processes(dir)) {
				if sent[a]++; sent[a] > mostConnections {
					continue
				}
				select {
				case targets <- a:
				case <-ctx.Done():
				}
			}
			time.Sleep(garbageInterval)
		}
	}()
	err = asUser(strangerUID, func() {
		for a := range targets {
			conn, err := net.DialTimeout(a.network, a.addr, 200*time.Millisecond)
			if err != nil {
				continue // the listener has just closed
			}
			taken.Add(1)
			conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
			conn.Write(forgery()) // the other end may have closed the connection
			if n, _ := conn.Read(make([]byte, 8)); n > 0 {
				answered++
			}
			conn.Close()
		}
	})
	return answered, err
}

// canIntrude returns why this process cannot become another user, or nil.
func canIntrude() error { return asUser(strangerUID, func() {}) }

// startSecondJob waits until the first job's store listens, starts a second job at its address, and
// waits until the second job has ended.
func (j *job) startSecondJob(ctx context.Context, addr, port string, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	for ctx.Err() == nil {
		if conn, err := net.Dial("tcp", net.JoinHostPort(addr, port)); err == nil {
			conn.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	size := j.World
	var id []string
	switch j.jobDifference() {
	case "job id":
		id = []string{"GODDP_JOB_ID=second"}
	case "arguments":
		args = append([]string{"-stagger", "1ms"}, args...)
	case "WORLD_SIZE":
		size++
	}
	for r := range size {
		env := append(j.rankEnv(r, size, addr, port, "False"), id...)
		if err := j.run(fmt.Sprintf("second job's rank %d", r), r, env, append([]string{j.path("worker")}, args...)...); err != nil {
			return err
		}
		last := len(j.programs) - 1
		p := j.programs[last]
		j.programs, j.secondJob = j.programs[:last], append(j.secondJob, p)
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("%s has not ended", p.name)
		}
	}
	return nil
}

// jobDifference returns in what the second job differs from the first.
func (s *scenario) jobDifference() string {
	return []string{"job id", "arguments", "WORLD_SIZE"}[s.Pick%3]
}

// judgeSecondJob checks that each rank of the second job failed with an error that says why.
func (j *job) judgeSecondJob(v *verdict) {
	v.hasCulprit = true
	for _, p := range j.secondJob {
		if p.status != "exited with 1" {
			v.wrongf("%s %s", p.name, p.status)
		}
		wants := []string{"has the port"}
		if p.rank > 0 {
			wants = []string{j.jobDifference(), "MASTER_PORT"}
		}
		text := j.wroteBy(p)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				v.unnamedf("%s does not say %q: %q", p.name, want, text)
			}
		}
	}
}
