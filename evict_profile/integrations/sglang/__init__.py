"""The plug-in that cuts draft trees inside an SGLang server, and what it is made of.

SGLang imports `plugin` in each of its processes, through the entry-point group
`sglang.srt.plugins`. Nothing happens there unless the environment asks for it
(`settings`), and nothing of SGLang is imported before it has asked.
"""
