# Completes groups, options and settings of a command; Hydra's own script knows files only.
_showattendtell() {
  local words=($COMP_LINE) command line
  if [[ "${words[1]} ${words[2]}" == "-m showattendtell."* ]]; then
    command=("${words[@]:0:3}") line=${COMP_LINE#*-m }
  elif [[ "${words[0]}" == *showattendtell ]]; then
    command=("${words[@]:0:2}") line=${COMP_LINE#* }
  else
    return
  fi
  local choices=$(COMP_LINE="python $line" "${command[@]}" -sc query=bash 2> /dev/null)
  COMPREPLY=($(compgen -o nospace -o default -W "$choices" -- "${COMP_WORDS[$COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _showattendtell python python3 showattendtell
