# Completes groups, options and settings of `python -m showattendtell.COMMAND`; Hydra's own script knows files only.
_showattendtell() {
  local words=($COMP_LINE)
  [[ "${words[1]} ${words[2]}" == "-m showattendtell."* ]] || return
  local choices=$(COMP_LINE="python ${COMP_LINE#*-m }" "${words[@]:0:3}" -sc query=bash 2> /dev/null)
  COMPREPLY=($(compgen -o nospace -o default -W "$choices" -- "${COMP_WORDS[$COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _showattendtell python python3
