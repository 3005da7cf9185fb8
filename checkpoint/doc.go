// Package checkpoint saves and loads the state of a training run so that no crash loses the
// last complete checkpoint.
//
//	ck, err := checkpoint.Open(ctx, pg, "run1", &checkpoint.Options{Keep: 3, Async: true})
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, ck.Close()) }()
//	var position data.Position
//	state := checkpoint.State{
//		Model: model, Optimizers: []optim.Optimizer{opt},
//		Values: map[string]any{"position": &position, "scaler": scaler},
//	}
//	step, err := ck.Resume(ctx, state) // 0: there is no checkpoint
//	...
//	position = batch.After
//	err = ck.Save(ctx, step, state)
//
// # Files
//
//	run1/latest                                          the name of the latest checkpoint
//	run1/step-00001200/manifest.json                     the list of its tensors, with all checksums
//	run1/step-00001200/rank-00000-of-00002.safetensors   the share of each rank
//	run1/step-00001200/rank-00001-of-00002.safetensors
//	run1/.tmp-...                                        incomplete checkpoints
//	run1/.lock                                           which process uses the folder
//
// Each rank writes a share of the state: an equal part, in bytes, of the tensors that all ranks have,
// and its own part of the tensors that package ddp/zero divides. Rank 0's share also has the model's
// buffers. The manifest lists each tensor with its parts, which are ranges of elements. So any number of
// ranks, with or without package ddp/zero, can read the elements that they need. The manifest has a
// CRC-32C of each part and the SHA-256 of itself.
//
// The files have the format of package safetensors, which PyTorch and Hugging Face read. [Export]
// writes the weights to one file, under the names that the model gives them; [Import] converts such a file to
// a checkpoint. The command goddp checkpoint exports, imports, lists, verifies and compares checkpoints.
//
// # Weights alone
//
// [SaveWeights] writes a model's weights to a safetensors file. [LoadWeights] loads weights into a model from
// a safetensors file, from several files with an index, or from a checkpoint. The file may have tied weights
// under any of their names. The model and the file may differ: for example, the model may have another
// last layer than the saved model. The report lists the weights that were loaded and those that did not fit:
//
//	report, err := checkpoint.LoadWeights("resnet18.safetensors", net)
//	if err != nil {
//		return err
//	}
//	log.Printf("%d weights loaded, not in the file: %q, of another shape: %v", len(report.Loaded), report.Missing, report.Mismatched)
//
// [Report.Complete] returns an error unless the model and the file have the same weights and all were loaded.
//
// [Import] keeps tensors of types that devices do not support, such as BOOL and F8_E4M3. Resume does not
// load them, and logs their names.
//
// # When a checkpoint is complete
//
// Each rank writes its file into a temporary folder, syncs the file and the folder, and reports to rank
// 0. When all ranks have reported, rank 0 writes the manifest, syncs it and the folder, renames the
// folder, and syncs the parent folder. It replaces the file latest in the same way. So a folder that has
// the name of a checkpoint and contains a manifest is durable and complete. If a process or machine fails,
// at any moment, at least the previous checkpoint remains. A second checkpoint of step 1200 is named
// step-00001200.1 and does not replace the first.
//
// Then rank 0 reads the new checkpoint back. If all checksums match, it deletes all checkpoints except the last
// Options.Keep, the last finite one and the best one ([State]); otherwise it deletes nothing.
//
// # NaN and Inf
//
// A checkpoint is finite if its tensors contain no NaN and no Inf; the model's buffers may contain Inf, because
// masks do. Options.Keep never deletes the last finite checkpoint, so a run that has diverged can continue from
// before the divergence. The writers check the snapshot, which costs the steps nothing, and the manifest holds
// the result ([Manifest.NonFinite]). The first save that is not finite is logged; with Options.RequireFinite
// each such save fails.
//
// # Network file systems
//
// Ranks on several hosts need a folder that all of them see. The package relies on the guarantees of
// NFS: a host that opens a file or folder sees everything that other hosts have synced and closed
// before, and a rename is atomic. A host may cache names and sizes, so a rank opens the folder before it
// opens a file of another host. If the handle of a file has become stale, the rank opens the file again. A
// failed write may be reported by the write, the sync or the close. NFS cannot delete a folder while a process
// has a file in it open. If a deletion fails for that reason, this is logged, and the next Open tries again.
//
// # One job at a time
//
// Only one job at a time may use a folder. Rank 0 locks the file .lock by flock(2), from Open to Close. The
// operating system releases the lock when the process ends for any reason, so a restarted job gets the folder.
// If a host crashes, NFS 4 releases the lock when the host's lease expires (90 seconds by default), and NFS 3 when
// the host has rebooted. A second job gets an error with the first one's job id, host, process and start time. On a
// file system without locks, Open logs a warning, and the job that opened the folder last keeps it: the other
// job's next save fails with an error that names that job. Readers, such as [LoadWeights], [Verify] and
// [Export], need no lock.
//
// # Asynchronous saves
//
// With Options.Async, Save enqueues copies of this rank's share to page-locked memory, on its own stream
// and behind the work on the compute stream, and returns. The forward and backward passes of the next
// step run concurrently with these copies. The next update waits for them on the device
// ([autograd.Variable.BumpVersion]), so it cannot overwrite memory before it is copied. The host does not wait. A
// goroutine, the writer, waits for
// the copies, writes them, and exchanges reports with the writers of the other ranks
// ([comm.ProcessGroup.Post]). Only the program's goroutine runs collectives.
//
// If a rank dies, the writers of the other ranks wait until Options.Timeout. Close in a broken group
// waits for a few seconds. [Manager.Stats] returns how long the last save took. The program
// bench/checkpoint measures how much saves slow down the steps.
//
// # Failure
//
// If a save fails, because the disk is full or a rank died, all ranks get an error and the earlier checkpoints
// stay. If the latest checkpoint is corrupt, Resume logs that and loads the previous one. All sizes in a
// checkpoint are compared with those of its files before memory is allocated for them. Only regular files are
// opened.
//
// A job that golaunch restarts (--max-restarts) calls Resume as in its first attempt. A job
// that goes on without its lost ranks (package elastic) opens a manager again, and resumes from a checkpoint only if no
// rank is left that has the state.
package checkpoint
