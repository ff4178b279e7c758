"""Instances over several pods as one program of MPI: the first pod starts it once the others answer, over SSH.

TensorRT-LLM's ranks meet so: `mpirun` starts `trtllm-llmapi-launch` once for every rank, of which the first serves
(nvidia.github.io/TensorRT-LLM, multi-node serving). Every pod runs an SSH daemon of its own port, with the key of a
secret of type kubernetes.io/ssh-auth. `mpirun` hands arguments on without a shell.
"""

import dataclasses
from collections.abc import Sequence

from planner.emit.clusters.launch import HEAD, KEYS, Group, Launch, Pod
from planner.emit.options import flag
from planner.emit.shell import Variable, Word, preamble, word
from planner.errors import PlannerError

_SCRIPT = "mpi.sh"
_PORT = 2222
_HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "HF_TOKEN", "HF_HOME")  # what ranks on other pods must know
_TEXT = (
    *preamble(("Ranks on several pods: `worker` waits for them, `head SLOTS HOSTS HOST... PROGRAM...` starts them.",)),
    "umask 077",
    'keys="${HOME:-/root}/.ssh"',
    'mkdir -p "${keys}"',
    "mkdir -p /run/sshd 2>/dev/null || true",
    f'cat {KEYS}/ssh-privatekey > "${{keys}}/planner"',
    'ssh-keygen -y -f "${keys}/planner" > "${keys}/planner-known"',
    '[ -e "${keys}/planner-host" ] || ssh-keygen -q -t ed25519 -N \'\' -f "${keys}/planner-host"',
    f'daemon=("$(command -v sshd || echo /usr/sbin/sshd)" -e -p {_PORT} -h "${{keys}}/planner-host"',
    '  -o "AuthorizedKeysFile ${keys}/planner-known" -o "StrictModes no" -o "PasswordAuthentication no"',
    '  -o "PidFile none")',
    'if [ "$1" = worker ]; then exec "${daemon[@]}" -D; fi',
    '"${daemon[@]}"',
    'slots="$2" count="$3"',
    "shift 3",
    'list=""',
    'for host in "${@:1:count}"; do',
    f'  until (exec 3<>"/dev/tcp/${{host}}/{_PORT}") 2>/dev/null; do sleep 2; done',
    '  list+="${list:+,}${host}:${slots}"',
    "done",
    'shift "${count}"',
    "known=()",
    f"for name in {' '.join(_HANDED_ON)}; do",
    '  [ -z "${!name:-}" ] || known+=(-x "${name}")',
    "done",
    'exec "$(command -v mpirun)" --allow-run-as-root -n "$((slots * count))" --host "${list}" \\',
    f'  --mca plm_rsh_args "-p {_PORT} -i ${{keys}}/planner -o StrictHostKeyChecking=no'
    ' -o UserKnownHostsFile=/dev/null" \\',
    '  --mca orte_keep_fqdn_hostnames 1 "${known[@]}" trtllm-llmapi-launch "$@"',
)


def worker(turn: int) -> Variable:
    """The host name of a further pod of an instance, for the first."""
    return Variable(f"WORKER_{turn}")


def joined(launch: Launch, group: Group, target: str) -> Group:
    """The group as it is, or where its engine joins pods over MPI with what each of them runs.

    The first names the others by `worker`. Raises PlannerError where no secret holds a key, and for unequal pods.
    """
    if not launch.engine.over_mpi or not group.across_nodes:
        return group
    if launch.options.ssh_secret is None:
        raise PlannerError(
            f"the ranks of role `{group.role.name}` lie on several pods, which {launch.engine.name} joins over SSH",
            where=flag("ssh_secret"),
            hint=f"make a secret of type kubernetes.io/ssh-auth, and give `{flag('ssh_secret')} NAME`",
        )
    group.require_equal_pods(target)
    head, *others = group.pods
    hosts = [Word((HEAD,)), *(Word((worker(turn),)) for turn in range(1, len(group.pods)))]
    own = _told("head", head.gpus, len(hosts), *hosts)
    pods = (
        _behind(head, (*own, *head.program)),
        *(dataclasses.replace(pod, program=_told("worker"), flags=()) for pod in others),
    )
    return dataclasses.replace(group, pods=pods, files={**group.files, _SCRIPT: "\n".join(_TEXT) + "\n"})


def _behind(pod: Pod, program: Sequence[Word]) -> Pod:
    return dataclasses.replace(pod, program=tuple(program))


def _told(*words: object) -> tuple[Word, ...]:
    return (word("bash"), word(_SCRIPT), *(each if isinstance(each, Word) else word(each) for each in words))
