// Package etcd holds elections in etcd, by which another agent is elected when the host of the rendezvous
// dies.
//
// Under the prefix /goddp/NAME/ of a job there are three keys:
//
//	host   the address of the elected agent. It has the lease of this agent, which ends a few seconds
//	       after the agent does.
//	state  how far the job is: the number of the next round, and of the restarts. Only the elected
//	       agent writes it, in a transaction that requires that the key host is still the agent's own.
//	       The key outlives its writer by half a minute, in which the other agents elect the next host.
//	       It is deleted when the job ends. So another job can have the same name.
//	ended  says that the job has ended. The last host writes it, and it stays for a day. An agent that has
//	       lost the host would otherwise be elected and run the job again; it leaves if it finds this key.
//	       An agent that finds the key when it first looks belongs to another job and ignores it. The first
//	       host of that job deletes it.
//
// So a host that was cut off from etcd, and replaced, cannot begin a round any more.
//
// Writes to etcd that failed may have taken effect. Each is a transaction that can be repeated.
package etcd
