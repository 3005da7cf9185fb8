package handshake

import "testing"

// FuzzHandshake passes arbitrary bytes to both ends. Neither end may accept a process
// without the key as one of the job.
func FuzzHandshake(f *testing.F) {
	// An attacker who has another key can send complete messages.
	job := Job{ID: "j", World: 2}
	messages, dialled, listened := run(NewDialler(dialler(1, job, true), testKey), NewListener(listener(job, true), testKey))
	if dialled != nil || listened != nil {
		f.Fatal(dialled, listened)
	}
	f.Add(messages[0], messages[2])
	f.Add(messages[1], messages[3])
	for _, why := range []error{errCutOff, &DifferentJobError{What: "job id"}, &SecretError{Own: true}} {
		f.Add(encodeRejection(Process{}, why), encodeAccept(nil, &Process{ID: "x", PID: 1}))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte(nil))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := NewDialler(dialler(1, job, true), testKey)
		d.Hello()
		if _, err := d.Prove(first); err == nil {
			if rival, err := d.Finish(second); err == nil {
				t.Errorf("the dialler accepts a listener without the key, and its rival %v", rival)
			}
		} else if len(err.Error()) > 4*maxText {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		l := NewListener(listener(job, true), testKey)
		_, err := l.Answer(first)
		if err == nil {
			if p := l.Peer(); p.Rank < -1 || p.ConnIndex < 0 || len(p.Process.Host) > maxText {
				t.Errorf("the listener believes %+v", p)
			}
			if err = l.Verify(second); err == nil {
				t.Error("the listener accepts a dialler without the key")
			}
		}
		if err != nil && len(l.Refuse(err)) > MaxMessage {
			t.Errorf("a refusal of %d bytes", len(l.Refuse(err)))
		}
	})
}
